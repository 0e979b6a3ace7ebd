"""Where the records of a dataset are: files that were named, a folder with its splits, or the Hugging Face hub (whose
parquet branch, refs/convert/parquet, is downloaded as a folder)."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from burnish.data.files import FORMATS, Row, columns, no_column, read_rows
from burnish.errors import ConfigError, DataError

CONVERTED = "refs/convert/parquet"
_LOCAL = "give local files with --source FOLDER, or --train FILE and --test FILE"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hub:
    """A dataset on the Hugging Face hub, and what its splits are called there; None where it has no such split."""

    id: str
    config: str
    train: str | None = "train"
    test: str | None = "test"

    def splits(self) -> dict[str, str]:
        return {ours: theirs for ours, theirs in (("train", self.train), ("test", self.test)) if theirs}


class Part(NamedTuple):
    file: Path
    records: list[Row]


@dataclass(frozen=True)
class Origin:
    """Where records come from: named files, a folder, a hub id, or (by default) the task's own dataset. With
    `test_size` that many questions of the train records become the test split; test records are not read."""

    train: Sequence[str] = ()
    test: Sequence[str] = ()
    source: str | None = None
    hub: str | None = None
    hub_config: str | None = None
    test_size: int | None = None
    rename: Mapping[str, str] = field(default_factory=dict)  # column as it is called → as the task calls it

    def __post_init__(self) -> None:
        if sum(map(bool, (self.train or self.test, self.source, self.hub))) > 1:
            raise ConfigError("--train/--test FILE, --source FOLDER and --hub ID all say where records are: give one")
        if self.hub_config and (self.train or self.test or self.source):
            raise ConfigError("--hub-config picks a part of a dataset on the hub; with local files leave it out")
        if self.test_size is not None and self.test_size < 1:
            raise ConfigError(f"--test-size {self.test_size}: at least 1; without it no part is kept apart")
        if self.test_size is not None and self.test:
            raise ConfigError("--test gives the test split, and --test-size takes it from the train records: give one")

    def splits(self, hub: Hub) -> list[str]:
        if self.test_size is not None:
            return ["train", "test"]
        named = [name for name, files in (("train", self.train), ("test", self.test)) if files]
        return named or list(hub.splits())

    def files(self, hub: Hub) -> dict[str, list[Path]]:
        wanted = [split for split in self.splits(hub) if not (split == "test" and self.test_size)]
        if self.train or self.test:
            named = {"train": self.train, "test": self.test}
            return {split: [Path(file) for file in named[split]] for split in wanted}
        theirs = {split: hub.splits().get(split, split) for split in wanted}
        if self.source:
            return {split: files_in(self.source, split, theirs[split]) for split in wanted}
        config = self.hub_config or (hub.config if self.hub in (None, hub.id) else "default")
        folder = download(self.hub or hub.id, config, list(theirs.values()))
        return {split: files_in(folder, theirs[split]) for split in wanted}


def read(files: Iterable[str | Path], rename: Mapping[str, str] = MappingProxyType({})) -> list[Part]:
    parts = []
    for file in files:
        rows = read_rows(file)
        there = columns(rows)
        for theirs, ours in rename.items():
            if theirs not in there:
                raise no_column(file, theirs, there, f"Name one of them in --rename THEIRS={ours}")
            if ours in there and ours not in rename:
                log.warning("%s: the column '%s' is dropped: --rename gives its name to '%s'", file, ours, theirs)
        if rename:
            taken = set(rename.values()) - set(rename)
            rows = [{rename.get(name, name): value for name, value in row.items() if name not in taken} for row in rows]
        parts.append(Part(Path(file), rows))
    return parts


def files_in(folder: str | Path, split: str, other: str | None = None) -> list[Path]:
    """The files of a split in a folder: train.jsonl, or train-00000-of-00002.parquet and so on, or train/*.parquet; of
    two such sets neither is taken. `other` is a further name the split may have."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        problem = f"is a file; name it with --train {folder}" if root.exists() else f"not found from {Path.cwd()}"
        raise DataError(f"--source {folder}: {problem}; a folder with train.* and test.* is wanted")

    def data_files(paths: Iterable[Path]) -> list[Path]:
        return sorted(path for path in paths if path.is_file() and path.name.lower().endswith(FORMATS))

    found = []  # the sets of files that could be the split
    for name in dict.fromkeys((split, other or split)):
        found += [data_files([root / f"{name}{suffix}"]) for suffix in FORMATS]
        found += [data_files(root.glob(f"{name}-*")), data_files((root / name).glob("*"))]
    found = [files for files in found if files]
    if not found:
        apart = ", or keep a part of the train records apart with --test-size N" if split == "test" else ""
        raise DataError(
            f"{folder}: no {split} file; looked for {split}.*, {split}-* and {split}/* ending with one of "
            f"{', '.join(FORMATS)}. Name it with --{split} FILE{apart}"
        )
    if len(found) > 1:
        both = " and ".join(str(files[0].relative_to(root)) for files in found[:2])
        raise DataError(f"{folder}: both {both} could be the {split} split; name one with --{split} FILE")
    return found[0]


def download(hub_id: str, config: str, splits: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [f"{config}/{split}/*.parquet" for split in splits]
    try:
        snapshot = Path(snapshot_download(hub_id, repo_type="dataset", revision=CONVERTED, allow_patterns=patterns))
    except (OSError, ValueError) as exc:  # no network, no such dataset, no access; an id that is none
        said = str(exc).strip().split("\n")[0].rstrip(".")
        raise DataError(f"{hub_id} could not be fetched from the hub ({said}); {_LOCAL}") from exc
    if missing := [split for split in splits if not any((snapshot / config / split).glob("*.parquet"))]:
        raise DataError(
            f"{hub_id} on the hub has no {config}/{missing[0]}/*.parquet; name its configuration with --hub-config "
            f"(https://huggingface.co/datasets/{hub_id} lists them), or {_LOCAL}"
        )
    return snapshot / config


def renaming(words: Iterable[str]) -> dict[str, str]:
    table: dict[str, str] = {}
    for word in words:
        theirs, _, ours = word.partition("=")
        if not theirs or not ours:
            raise ConfigError(f"--rename {word}: write THEIRS=OURS, e.g. --rename problem=question")
        for before, name in table.items():
            if before == theirs or name == ours:
                raise ConfigError(f"--rename {before}={name} and --rename {word} contradict each other: give one")
        table[theirs] = ours
    return table
