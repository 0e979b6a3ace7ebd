"""Flags that `burnish serve` and `burnish chat` share: which model, and how it is loaded."""

import argparse
from typing import Any

from burnish.config.model import DTYPE_SPELLINGS, DTYPES
from burnish.entry.arguments import positive


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
    )
