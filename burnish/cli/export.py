"""`burnish export SOURCE --out FOLDER`: the flags, and what is printed. The work is `burnish/export`."""

import argparse
import re
import sys
from dataclasses import fields
from pathlib import Path

from burnish.cli.arguments import Parser
from burnish.config.model import DTYPE_SPELLINGS, DTYPES

SUMMARY = """\
Write a clean Hugging Face folder from a checkpoint, a LoRA adapter or any model folder: configuration, safetensors,
tokenizer with chat template, generation config, and nothing of the training. The folder is read again and compared
with its source before it appears under its name."""
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.IGNORECASE)


def parser() -> Parser:
    from burnish.export.place import as_size
    from burnish.export.source import ROLES, ExportRequest
    from burnish.models.device import DEVICES

    p = Parser("export", SUMMARY, "export outputs/burnish/run/global_step_30 --out models/my-model --dtype bfloat16")
    p.add_argument("source", help="global_step_N, a run folder (its newest), a model or adapter folder, or a hub id")
    p.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the export goes")
    p.add_argument("--dtype", type=_dtype, help="float32, bfloat16 or float16 [as stored]")
    p.add_argument(
        "--max-shard-size", dest="max_shard_bytes", type=_size, default=argparse.SUPPRESS, metavar="SIZE",
        help=f"largest file of weights, such as 500MB [{as_size(ExportRequest.max_shard_bytes)}]",
    )  # fmt: skip
    p.add_argument(
        "--role", choices=ROLES, default=ExportRequest.role,
        help=f"the policy, or the value model of a checkpoint [{ExportRequest.role}]",
    )  # fmt: skip
    p.add_argument("--adapter-only", action="store_true", help="keep a LoRA adapter by itself instead of merging it")
    p.add_argument("--base", metavar="FOLDER", help="an adapter's base model, if not where adapter_config.json says")
    p.add_argument(
        "--device", choices=DEVICES, default=ExportRequest.device, help=f"where the check runs [{ExportRequest.device}]"
    )
    p.add_argument("--overwrite", action="store_true", help="replace a model folder that is there")
    p.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with the model")
    return p


def main(argv: list[str]) -> int:
    from burnish.export import ExportRequest, export

    command = parser()
    options = command.parse_args(argv)
    if options.adapter_only and "max_shard_bytes" in options:
        command.error("--max-shard-size is for whole models; an adapter is one file, so leave it out")
    asked = {field.name: getattr(options, field.name) for field in fields(ExportRequest) if field.name in options}
    print(export(ExportRequest(**asked), _tell))
    return 0


def _tell(line: str) -> None:
    print(f"burnish: {line}", file=sys.stderr, flush=True)


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
