"""`burnish serve FOLDER`: an OpenAI-compatible endpoint over a model or checkpoint.

The flags are here; what serves is `burnish/serving`, imported when the flags are right.
"""

import os
from importlib.util import find_spec

from burnish.cli.arguments import Parser, add_model_flags, model_options, not_negative, positive
from burnish.errors import ConfigError, install_command

KEY_VARIABLE = "BURNISH_API_KEY"
PACKAGES = ("fastapi", "uvicorn")


def main(argv: list[str]) -> int:
    flags = parser().parse_args(argv)
    if not 0 <= flags.port <= 65535:
        raise ConfigError(f"--port {flags.port}: ports go from 1 to 65535; 0 takes any that is free")
    key = api_key(flags.api_key)
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"burnish serve needs the package {' and '.join(missing)}; install it with {install_command('serve')}"
        )
    from burnish.serving.server import ServeOptions, serve

    return serve(
        ServeOptions(
            model=model_options(flags, flags.max_num_seqs),
            host=flags.host,
            port=flags.port,
            name=flags.served_model_name,
            api_key=key,
            max_waiting=flags.max_waiting,
        )
    )


def api_key(flag: str | None) -> str | None:
    """What clients must send. An empty one is a variable that was never set, and would let everyone in."""
    name, key = ("--api-key", flag) if flag is not None else (KEY_VARIABLE, os.environ.get(KEY_VARIABLE))
    if key == "":
        raise ConfigError(f"{name} is empty; give a key, or leave it out to serve without one")
    return key


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
