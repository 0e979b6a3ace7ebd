"""Files, which burnish reads where they are."""

from pathlib import Path
from typing import Any

from burnish.errors import NotAvailable


def copy_to_local(src: str, cache_dir: str | None = None, **kwargs: Any) -> str:
    """The path itself, with `~` expanded."""
    if str(src).startswith("hdfs://"):
        raise NotAvailable(f"reading {src}", "Copy it to a mounted folder first.")
    return str(Path(src).expanduser())


copy_local_path_from_hdfs = copy_to_local  # its name until verl 0.2
