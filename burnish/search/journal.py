"""Which parts of an index are on disk, whole: one small record per part, written after the part's files.

A record holds the checksums of the files and what the next part needs to know. A part whose files are not as its record
says is not there: it is made again.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from burnish.errors import DataError
from burnish.search.files import Sum, checked_json, is_whole, write_json
from burnish.search.manifest import FILE_NAME

RECORDS = "parts"


class Journal:
    """The records of the index in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def read(self, part: str) -> dict[str, Any] | None:
        """The facts of a part, or None where it has to be made."""
        if part in self._known:
            return self._known[part]
        path = self._path(part)
        if not path.exists():
            return None
        try:
            record = checked_json(path)
            sums = {name: Sum(**entry) for name, entry in record["files"].items()}
            facts = record["facts"]
        except (DataError, KeyError, TypeError, AttributeError):
            return None
        if not isinstance(facts, dict) or not all(map(_is_name, sums)):
            return None
        if not all(is_whole(self.folder / name, expected) for name, expected in sums.items()):
            return None
        self._known[part] = facts
        return facts

    def write(self, part: str, files: Mapping[str, Sum], facts: dict[str, Any]) -> None:
        """The files of a part (by their names in the index folder) are there."""
        entries = {name: asdict(each) for name, each in files.items()}
        write_json(self._path(part), {"files": entries, "facts": facts})
        self._known[part] = facts

    def files(self, part: str) -> dict[str, Any]:
        """The checksums of a part that is there."""
        found: dict[str, Any] = checked_json(self._path(part))["files"]
        return found

    def _path(self, part: str) -> Path:
        return self.folder / RECORDS / f"{part}.json"


def _is_name(name: str) -> bool:
    """Whether an index, or one that is being built, has a file of this name."""
    return bool(FILE_NAME.fullmatch(name)) or re.fullmatch(rf"{RECORDS}/[a-z0-9.-]+", name) is not None
