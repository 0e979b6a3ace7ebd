"""Command lines that are not Hydra's: `burnish data check FILE --tokenizer …`, `burnish export …`.

A `Parser` is argparse with an example in its help and mistakes as ConfigErrors, so that they are told like any other.
`add_model_flags` is what commands have in common that talk to a model.
"""

import argparse
from typing import Any, NoReturn

from burnish.cli.errors import DEBUG
from burnish.config.model import DTYPE_SPELLINGS, DTYPES
from burnish.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """The arguments of one command; `example` is what follows `burnish` in a command that works."""

    def __init__(self, command: str, summary: str, example: str, **options: Any):
        super().__init__(
            prog=f"burnish {command}",
            description=summary,
            epilog=f"example:\n  burnish {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **options,
        )
        self.add_argument(DEBUG, action="store_true", help="a traceback with an error")

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}. `{self.prog} --help` shows an example")


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


def add_model_flags(to: argparse.ArgumentParser) -> None:
    """Which model, and how it is loaded."""
    from burnish.models.device import DEVICES
    from burnish.rollout import ENGINES

    to.add_argument("folder", metavar="FOLDER", help="model folder, global_step_N, run folder, or hub id")
    to.add_argument("--device", choices=DEVICES, default="auto", help="auto: a GPU where there is one")
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
    to.add_argument("--engine", default="native", metavar="NAME", help=f"rollout engine: {', '.join(ENGINES)} [native]")
    to.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with the model")


def model_options(flags: argparse.Namespace, max_num_seqs: int) -> Any:
    """The flags of `add_model_flags` as the `ModelOptions` of `burnish/serving`."""
    from burnish.serving.loading import ModelOptions

    return ModelOptions(
        folder=flags.folder,
        device=flags.device,
        dtype=DTYPE_SPELLINGS.get(flags.dtype, flags.dtype),
        max_model_len=flags.max_model_len,
        max_num_seqs=max_num_seqs,
        engine=flags.engine,
        trust_remote_code=flags.trust_remote_code,
    )
