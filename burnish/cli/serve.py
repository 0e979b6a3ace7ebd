"""`burnish serve FOLDER` and `burnish chat FOLDER`: the flags; `burnish/serving` does the work. It is imported once the
flags are right."""

import argparse
from typing import Any

from burnish.config.model import DTYPE_SPELLINGS, DTYPES
from burnish.entry.arguments import (
    FlagParser,
    add_address,
    add_key,
    check_address,
    need_packages,
    not_negative,
    positive,
    read_key,
)

KEY_VARIABLE = "BURNISH_API_KEY"


def main(argv: list[str]) -> int:
    flags = parser().parse_args(argv)
    check_address(flags)
    key = read_key(flags.api_key, KEY_VARIABLE)
    need_packages("burnish serve", "serve")
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


def parser() -> FlagParser:
    found = FlagParser(
        "serve",
        "An OpenAI-compatible endpoint over a model or checkpoint: /v1/chat/completions, /v1/completions, /v1/models.",
        "serve outputs/quickstart --served-model-name sums",
    )
    add_model_flags(found)
    add_address(found, 8001)
    add = found.add_argument
    add("--served-model-name", metavar="NAME", help="what clients call the model [the folder's name]")
    add_key(found, KEY_VARIABLE)
    add("--max-num-seqs", type=positive, default=64, metavar="N", help="answers generated at the same time [64]")
    waiting = "answers that may wait for a free slot [256]"
    add("--max-waiting", type=not_negative, default=256, metavar="N", help=waiting)
    return found


def chat(argv: list[str]) -> int:
    flags = chat_parser().parse_args(argv)
    from burnish.rollout.base import Sampling
    from burnish.serving import terminal

    names = ("temperature", "top_p", "top_k", "min_p", "max_tokens")
    sampling = Sampling(**{name: getattr(flags, name) for name in names})
    return terminal.chat(model_options(flags, max_num_seqs=1), sampling, flags.seed, flags.system)


def chat_parser() -> FlagParser:
    found = FlagParser(
        "chat",
        "Chat with a model or checkpoint in the terminal; from a pipe, each line is a question.",
        'chat outputs/quickstart --system "Be brief."',
    )
    add_model_flags(found)
    add = found.add_argument
    add("--system", metavar="TEXT", help="system message")
    add("--temperature", type=float, default=0.7, metavar="X", help="sampling temperature [0.7]; 0: greedy")
    add("--top-p", type=float, default=1.0, metavar="X", help="smallest set with this probability [1.0]")
    add("--top-k", type=int, default=-1, metavar="N", help="sample from the N most likely tokens [-1: all]")
    add("--min-p", type=float, default=0.0, metavar="X", help="drop tokens below this share of the likeliest [0.0]")
    add("--max-tokens", type=positive, metavar="N", help="maximum tokens of one answer [the rest of the context]")
    add("--seed", type=int, metavar="N", help="seed, for the same answers each time [random]")
    return found


def add_model_flags(to: argparse.ArgumentParser) -> None:
    from burnish.models.device import DEVICES
    from burnish.rollout import ENGINES

    add = to.add_argument
    add("folder", metavar="FOLDER", help="model folder, global_step_N, run folder, or hub id")
    add("--device", choices=DEVICES, default="auto", help="auto: a GPU if there is one")
    dtypes = f"dtype of the weights: {', '.join(DTYPES)} [auto: as stored on a GPU, float32 on a CPU]"
    add("--dtype", choices=(*DTYPES, *DTYPE_SPELLINGS), default="auto", metavar="TYPE", help=dtypes)
    length = "maximum tokens of prompt and answer together [the model's context]"
    add("--max-model-len", type=positive, metavar="N", help=length)
    add("--engine", default="native", metavar="NAME", help=f"rollout engine: {', '.join(ENGINES)} [native]")
    add("--trust-remote-code", action="store_true", help="run Python code that comes with the model")
    add("--escape-special-tokens", action="store_true", help="make special tokens in messages ordinary text")


def model_options(flags: argparse.Namespace, max_num_seqs: int) -> Any:
    """These flags as the `ModelOptions` of `burnish/serving`."""
    from burnish.serving.loading import ModelOptions

    return ModelOptions(
        folder=flags.folder,
        device=flags.device,
        dtype=DTYPE_SPELLINGS.get(flags.dtype, flags.dtype),
        max_model_len=flags.max_model_len,
        max_num_seqs=max_num_seqs,
        engine=flags.engine,
        trust_remote_code=flags.trust_remote_code,
        escape_special_tokens=flags.escape_special_tokens,
    )
