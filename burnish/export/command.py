"""`burnish export SOURCE --out FOLDER`: the flags, and what is printed. The work is `export` in this package."""

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from burnish.config.model import DTYPE_SPELLINGS, DTYPES
from burnish.entry.arguments import FlagParser
from burnish.entry.guard import say
from burnish.literal import print_text

SUMMARY = """\
Write a clean Hugging Face folder from a checkpoint, a LoRA adapter or any model folder: configuration, safetensors,
tokenizer with chat template and generation config, without any training state. The folder is read back and compared
with its source before it gets its name."""
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.IGNORECASE)


def parser() -> FlagParser:
    from burnish.export.place import as_size
    from burnish.export.source import ROLES, ExportRequest
    from burnish.models.device import DEVICES

    p = FlagParser(
        "export", SUMMARY, "export outputs/burnish/run/global_step_30 --out models/my-model --dtype bfloat16"
    )
    p.add_argument("source", help="global_step_N, a run folder (its newest), a model or adapter folder, or a hub id")
    p.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the export goes")
    p.add_argument("--dtype", type=_dtype, help="float32, bfloat16 or float16 [as stored]")
    shards: dict[str, Any] = {"dest": "max_shard_bytes", "type": _size, "default": argparse.SUPPRESS, "metavar": "SIZE"}
    largest = f"largest file of weights, such as 500MB [{as_size(ExportRequest.max_shard_bytes)}]"
    p.add_argument("--max-shard-size", **shards, help=largest)
    role = f"the policy, or the value model of a checkpoint [{ExportRequest.role}]"
    p.add_argument("--role", choices=ROLES, default=ExportRequest.role, help=role)
    p.add_argument("--adapter-only", action="store_true", help="write the LoRA adapter alone instead of merging it")
    p.add_argument("--base", metavar="FOLDER", help="base model of an adapter [as in adapter_config.json]")
    device = ExportRequest.device
    p.add_argument("--device", choices=DEVICES, default=device, help=f"where the check runs [{device}]")
    p.add_argument("--overwrite", action="store_true", help="replace an existing model folder")
    p.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with the model")
    return p


def main(argv: list[str]) -> int:
    from burnish.export import ExportRequest, export

    command = parser()
    options = command.parse_args(argv)
    if options.adapter_only and "max_shard_bytes" in options:
        command.error("--max-shard-size is for whole models; an adapter is one file, so leave it out")
    asked = {field.name: getattr(options, field.name) for field in fields(ExportRequest) if field.name in options}
    print_text(export(ExportRequest(**asked), say))
    return 0


def _size(text: str) -> int:
    """5GB, 500MB, 2GiB or a number of bytes."""
    match = SIZE.fullmatch(text.strip())
    size = float(match[1]) * UNITS.get(match[2].upper(), 0) if match else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a size; write for example 5GB, 500MB or 2GiB")
    return int(size)


def _dtype(text: str) -> str:
    dtype = DTYPE_SPELLINGS.get(text, text)
    known = [name for name in DTYPES if name != "auto"]
    if dtype not in known:
        raise argparse.ArgumentTypeError(f"{text} is unknown; choose {', '.join(known)}")
    return dtype
