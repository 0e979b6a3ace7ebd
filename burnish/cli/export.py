"""`burnish export SOURCE --out FOLDER`: the flags, and what is printed. The work is `burnish/export`."""

import argparse
import sys
from pathlib import Path

from burnish.cli.arguments import Parser
from burnish.config.model import DTYPE_SPELLINGS, DTYPES

SUMMARY = """\
Write a clean Hugging Face folder from a checkpoint, a LoRA adapter or any model folder: configuration, safetensors,
tokenizer with chat template, generation config, and nothing of the training. The folder is read again and compared
with its source before it appears under its name."""


def parser() -> Parser:
    from burnish.export.request import DEVICES, MAX_SHARD_SIZE, ROLES

    p = Parser("export", SUMMARY, "export outputs/burnish/run/global_step_30 --out models/my-model --dtype bfloat16")
    p.add_argument("source", help="global_step_N, a run folder (its newest), a model or adapter folder, or a hub id")
    p.add_argument("--out", required=True, type=Path, metavar="FOLDER", help="where the export goes")
    p.add_argument("--dtype", type=_dtype, help="float32, bfloat16 or float16 [as stored]")
    p.add_argument(
        "--max-shard-size", metavar="SIZE", help=f"largest file of weights, such as 500MB [{MAX_SHARD_SIZE}]"
    )
    p.add_argument(
        "--role", choices=ROLES, default="actor", help="the policy, or the value model of a checkpoint [actor]"
    )
    p.add_argument("--adapter-only", action="store_true", help="keep a LoRA adapter by itself instead of merging it")
    p.add_argument("--base", metavar="FOLDER", help="an adapter's base model, if not where adapter_config.json says")
    p.add_argument("--device", choices=DEVICES, default="cpu", help="where the check runs [cpu]")
    p.add_argument("--overwrite", action="store_true", help="replace a model folder that is there")
    p.add_argument("--trust-remote-code", action="store_true", help="run Python code that comes with the model")
    return p


def main(argv: list[str]) -> int:
    from burnish.export import Request, export
    from burnish.export.request import MAX_SHARD_SIZE, size_in_bytes

    command = parser()
    options = command.parse_args(argv)
    if options.adapter_only and options.max_shard_size:
        command.error("--max-shard-size is for whole models; an adapter is one file, so leave it out")
    try:
        max_shard_bytes = size_in_bytes(options.max_shard_size or MAX_SHARD_SIZE)
    except ValueError as error:
        command.error(f"--max-shard-size: {error}")
    request = Request(
        source=options.source,
        out=options.out,
        role=options.role,
        dtype=options.dtype,
        max_shard_bytes=max_shard_bytes,
        adapter_only=options.adapter_only,
        base=options.base,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
        overwrite=options.overwrite,
    )
    print(export(request, _tell))
    return 0


def _tell(line: str) -> None:
    print(f"burnish: {line}", file=sys.stderr, flush=True)


def _dtype(text: str) -> str:
    dtype = DTYPE_SPELLINGS.get(text, text)
    known = [name for name in DTYPES if name != "auto"]
    if dtype not in known:
        raise argparse.ArgumentTypeError(f"{text} is unknown; choose {', '.join(known)}")
    return dtype
