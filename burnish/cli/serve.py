"""`burnish serve FOLDER`: an OpenAI-compatible endpoint over a model or checkpoint.

The flags are here; what serves is `burnish/serving`, imported when the flags are right. `burnish chat` shares
`add_model_flags`.
"""

import argparse
import os
from importlib.util import find_spec
from typing import Any

from burnish.cli.arguments import Parser
from burnish.config.model import DTYPE_SPELLINGS, DTYPES
from burnish.errors import ConfigError

KEY_VARIABLE = "BURNISH_API_KEY"
PACKAGES = ("fastapi", "uvicorn")


def main(argv: list[str]) -> int:
    flags = parser().parse_args(argv)
    if not 0 <= flags.port <= 65535:
        raise ConfigError(f"--port {flags.port}: ports go from 1 to 65535; 0 takes any that is free")
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"burnish serve needs the package {' and '.join(missing)}; install it with pip install 'burnish[serve]'"
        )
    from burnish.serving.server import ServeOptions, serve

    return serve(
        ServeOptions(
            model=model_options(flags),
            host=flags.host,
            port=flags.port,
            name=flags.served_model_name,
            api_key=flags.api_key or os.environ.get(KEY_VARIABLE) or None,
            max_waiting=flags.max_waiting,
        )
    )


def parser() -> Parser:
    found = Parser(
        "serve",
        "An OpenAI-compatible endpoint over a model or checkpoint: /v1/chat/completions, /v1/completions, /v1/models.",
        "serve outputs/quickstart --port 8001 --served-model-name sums",
    )
    add_model_flags(found)
    found.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]; 0.0.0.0: all")
    found.add_argument("--port", type=int, default=8000, help="port to listen on [8000]; 0: any that is free")
    found.add_argument("--served-model-name", metavar="NAME", help="what clients call the model [the folder's name]")
    found.add_argument(
        "--api-key", metavar="KEY", help=f"what clients must send [the variable {KEY_VARIABLE}, or none]"
    )
    found.add_argument(
        "--max-num-seqs", type=positive, default=64, metavar="N", help="answers generated at the same time [64]"
    )
    found.add_argument(
        "--max-waiting", type=not_negative, default=256, metavar="N", help="answers that may wait for a place [256]"
    )
    return found


def add_model_flags(to: argparse.ArgumentParser) -> None:
    """Which model, and how it is loaded."""
    to.add_argument("folder", metavar="FOLDER", help="model folder, global_step_N, run folder, or hub id")
    to.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto: a GPU where there is one")
    to.add_argument(
        "--dtype",
        choices=(*DTYPES, *DTYPE_SPELLINGS),
        default="auto",
        metavar="TYPE",
        help=f"type of the weights: {', '.join(DTYPES)} [auto: the folder's own on a GPU, float32 on a CPU]",
    )
    to.add_argument(
        "--max-model-len", type=positive, metavar="N", help="tokens of prompt and answer together [the model's context]"
    )
    to.add_argument("--engine", default="hf", metavar="NAME", help="rollout engine [hf]")
    to.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with the model")


def model_options(flags: argparse.Namespace) -> Any:
    """The flags of `add_model_flags` as the `ModelOptions` of `burnish/serving`."""
    from burnish.serving.loading import ModelOptions

    return ModelOptions(
        folder=flags.folder,
        device=flags.device,
        dtype=DTYPE_SPELLINGS.get(flags.dtype, flags.dtype),
        max_model_len=flags.max_model_len,
        max_num_seqs=getattr(flags, "max_num_seqs", 1),
        engine=flags.engine,
        trust_remote_code=flags.trust_remote_code,
    )


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return number
