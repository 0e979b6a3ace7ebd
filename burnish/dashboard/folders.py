"""The runs below the folders that were named, and the only way to open a file of one.

No symbolic link below a named folder is followed, and only regular files are opened: nothing outside is served, and no
pipe holds a request up. A run is known by its name, which is looked up and never joined to a path.
"""

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import yaml  # type: ignore[import-untyped]

from burnish.errors import ConfigError
from burnish.literal import one_line
from burnish.tracking.run_folder import RECIPE_FILE
from burnish.tracking.run_status import MARKS
from burnish.web import HttpProblem

ELSEWHERE = {"rollouts": "rollout_data_dir", "validation": "validation_data_dir"}  # of the trainer
YAML_BYTES = 4 * 1024 * 1024  # of a file
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where PyYAML has it
DEPTH = 4  # of folders that are searched for runs
FOLDERS = 20_000  # searched at most
SEARCH_S = 5.0  # between two searches
MARK_NAMES = {mark.partition("/")[0] for mark in MARKS}
INSIDE = ("rollouts", "validation", "bad_steps", "stacks", "status", "tensorboard", "logs", "global_step_", ".")


class Folders:
    def __init__(self, roots: Iterable[str | Path]):
        self._roots = [Path(root).expanduser() for root in roots]
        for root in self._roots:
            if not root.is_dir():
                raise ConfigError(f"{root}: there is no such folder; name run folders, or a folder that holds some")
        self._known: dict[str, Path] = {}
        self._searched = -SEARCH_S

    def runs(self) -> dict[str, Path]:
        """By name: the path from the folder that was named, with its own name where several were."""
        if time.monotonic() - self._searched >= SEARCH_S:
            found = {}
            for root in self._roots:
                top = root.resolve()
                for folder in runs_below(top):
                    inner = folder.relative_to(top).as_posix()
                    name = inner if len(self._roots) == 1 and inner != "." else str(root / inner)
                    found[one_line(name)] = folder
            self._known, self._searched = found, time.monotonic()
        return self._known

    def run(self, name: str) -> Path:
        if (folder := self.runs().get(name)) is None:
            raise HttpProblem(404, f"there is no run {one_line(name)[:200]!r} in the folders of this dashboard")
        return folder

    def samples(self, folder: Path, kind: str) -> Path:
        """Where a run has its samples: elsewhere only if that is below a named folder too."""
        try:
            trainer: Any = read_yaml(folder / RECIPE_FILE).get("trainer")
            place = Path(trainer[ELSEWHERE[kind]]).resolve()
        except (HttpProblem, TypeError, KeyError, ValueError, OSError):
            return folder / kind
        return place if any(place.is_relative_to(root.resolve()) for root in self._roots) else folder / kind


def runs_below(top: Path) -> Iterator[Path]:
    waiting = [(top, 0)]
    for _ in range(FOLDERS):
        if not waiting:
            return
        folder, depth = waiting.pop()
        entries = listed(folder)
        if any(entry.name in MARK_NAMES for entry in entries):
            yield folder
        if depth < DEPTH:
            inner = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += [(folder / name, depth + 1) for name in inner if not name.startswith(INSIDE)]


def listed(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder that is no link, without links; nothing where there is none."""
    try:
        if folder.is_symlink():
            return []
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.is_symlink()]
    except OSError:
        return []


def opened(path: Path) -> BinaryIO:
    """A regular file, to be read; HttpProblem where there is none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(file).st_mode) and not path.parent.is_symlink():
            return os.fdopen(file, "rb")
        os.close(file)
    except OSError:
        pass
    raise HttpProblem(404, f"the run has no file {path.name}, or it is a link, which the dashboard does not follow")


def check_plain(folder: Path, *names: str) -> None:
    """HttpProblem where one of these, or what is in it, is a link, a pipe or the like: other code will read them."""
    for name in names:
        path = folder / name
        for file in [path, *(path.iterdir() if path.is_dir() else ())]:
            is_plain = file.is_file() or not file.exists() or (file == path and file.is_dir())
            if file.is_symlink() or not is_plain:
                raise HttpProblem(
                    404, f"{name} of this run is, or holds, a link or a pipe; the dashboard opens neither"
                )


def read_yaml(path: Path) -> dict[str, Any]:
    with opened(path) as file:
        text = file.read(YAML_BYTES + 1)
    try:
        if len(text) > YAML_BYTES:
            raise ValueError(f"it is larger than {YAML_BYTES} bytes")
        found = yaml.load(text, LOADER)
        if not isinstance(found, dict):
            raise ValueError("it holds no keys")
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = str(error).partition("\n")[0]
        raise HttpProblem(404, f"{path.name} of this run cannot be read: {reason}") from None
    return found
