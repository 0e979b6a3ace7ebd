"""What `burnish export` was asked for, as types; `cli/export.py` reads it off the command line."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Tell = Callable[[str], None]  # a line on what is happening, for whoever waits

ROLES = ("actor", "critic")
DEVICES = ("cpu", "auto", "cuda")
MAX_SHARD_SIZE = "5GB"
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Request:
    """One export. `dtype=None` keeps the type of the stored weights."""

    source: str
    out: Path
    role: str = "actor"
    dtype: str | None = None
    max_shard_bytes: int = 5 * 10**9
    adapter_only: bool = False
    base: str | None = None
    device: str = "cpu"
    trust_remote_code: bool = False
    overwrite: bool = False


def size_in_bytes(text: str) -> int:
    """5GB, 500MB, 2GiB or a number of bytes; ValueError for anything else."""
    match = SIZE.fullmatch(text.strip())
    size = float(match[1]) * UNITS.get(match[2].upper(), 0) if match else 0
    if size < 1:
        raise ValueError(f"{text} is not a size; write for example 5GB, 500MB or 2GiB")
    return int(size)
