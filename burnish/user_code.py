"""Users' own code by its address: a name in a Python file or in an importable module.

    my_reward.py             a file, also ~/my_reward.py; it can import the files next to it
    package.module           a module that Python finds, also one in the working directory
    my_agent.py:OneTurn      file (or module) and name in one value
    package.module.OneTurn   the same with a dot, for a module

A file is run once and its module kept; one that has changed since is run again. What goes wrong is a ConfigError with
the key, the value, and the nearest thing that is there, or the file's own traceback. No torch: scoring uses this.

An import that takes long is reported with the line that it is at, `REPORT_S` after its start; `import_s` after it the
process ends, because nothing is raised into a running thread. Of what it prints, the first part is shown.
"""

import difflib
import importlib
import importlib.util
import inspect
import itertools
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any, TextIO

from burnish.errors import ConfigError, UserError
from burnish.waits import EXIT_CODE, may_end, waiting

REPORT_S = 5.0
SHOWN = 2**20  # characters that an import prints

import_s = 270.0  # large libraries may come from a slow disk
report: Callable[[str], None] = logging.getLogger(__name__).warning  # says that an import takes long
give_up: Callable[[str], None] = logging.getLogger(__name__).critical  # the last words before the process ends

_BURNISH = str(Path(__file__).resolve().parent)
_LIBRARY = os.path.dirname(os.__file__)
_OWN = re.compile(f"{re.escape(_BURNISH)}/|{re.escape(_LIBRARY)}/(?!(site|dist)-packages/)|<frozen ")  # and Python's
importing: list[str] = []  # what is imported now, the innermost last: the key and value that name it
_stamps: dict[str, tuple[int, int]] = {}  # of the files that are loaded: when they were changed, and their size


def load_object(path: str | None, name: str | None, path_key: str, name_key: str) -> Any:
    """The callable `name` in the file or module `path`; errors name the configuration keys that gave them."""
    if not path:
        raise ConfigError(f"{path_key} is not set: give a .py file or an importable module")
    return _member(load_module(path, f"{path_key}={path}"), path, name, name_key, f"{name_key}={name}")


def load_class(path: str | None, name: str | None, path_key: str, name_key: str) -> type:
    """The same where only a class will do."""
    found = load_object(path, name, path_key, name_key)
    if not inspect.isclass(found):
        raise ConfigError(f"{name_key}={name}: in {path} it is a {type(found).__name__}, and a class is needed")
    return found


def load_target(target: str, key: str) -> Any:
    """The callable at `file.py:Name`, `package.module:Name` or `package.module.Name`, the value of `key`."""
    path, _, name = target.rpartition(":" if ":" in target else ".")
    about = f"{key}={target}"
    if not path or not name or target.endswith(".py"):
        raise ConfigError(f"{about}: expected package.module:Name, package.module.Name or file.py:Name")
    return _member(load_module(path, about), path, name, key, about)


def import_libraries(libraries: Mapping[str, str | Sequence[str] | None]) -> list[str]:
    """Import what keys such as `actor_rollout_ref.model.external_lib` name: modules or .py files, as a list or joined
    by commas. What they register can then be named by other keys. Returns the names of the modules."""
    found = []
    for key, given in libraries.items():
        names = given.split(",") if isinstance(given, str) else given or ()
        found += [load_module(name, f"{key}={name}").__name__ for name in map(str.strip, names) if name]
    return found


def _member(module: ModuleType, path: str, name: str | None, key: str, about: str) -> Any:
    there = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
    if not name:
        raise ConfigError(f"{key} is not set: name one of the objects in {path}, which defines {listed(there)}")
    if not hasattr(module, name):
        raise ConfigError(f"{about}: {path} has no such name; it defines {listed(there)}{nearest(name, there)}")
    found = getattr(module, name)
    if not callable(found):
        raise ConfigError(f"{about}: in {path} it is of type {type(found).__name__} and cannot be called")
    return found


def load_module(path: str, about: str) -> ModuleType:
    """The module of a file or of an import path; errors begin with `about`."""
    file = Path(path).expanduser()
    if path.endswith(".py") or file.is_file() or "/" in path:
        return _load_file(file, about)
    try:
        with nullcontext() if path in sys.modules else _watched(about):  # algorithms are looked up in each step
            return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(error.name + ".")):
            raise _import_failed(about) from None
        raise ConfigError(
            f"{about}: no such file, and no module of that name; give a .py file or an importable module"
        ) from None
    except (Exception, SystemExit):  # noqa: BLE001  whatever a user's module raises is the user's to fix
        raise _import_failed(about) from None


def _load_file(file: Path, about: str) -> ModuleType:
    if not file.is_file():
        near = nearest(file.name, [p.name for p in file.parent.glob("*.py")]) if file.parent.is_dir() else ""
        problem = "is a folder, not a .py file" if file.is_dir() else f"no such file (looked for {file.absolute()})"
        raise ConfigError(f"{about}: {problem}{near}")
    resolved = file.resolve()
    name = "burnish_user_" + "".join(c if c.isalnum() else "_" for c in str(resolved))
    stamp = (resolved.stat().st_mtime_ns, resolved.stat().st_size)
    if name in sys.modules and _stamps.get(name) == stamp:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{about}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up while the file runs
    if str(resolved.parent) not in sys.path:
        sys.path.append(str(resolved.parent))  # so that the file can import its neighbours
    try:
        with _watched(about):
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]  # a half-run module must not be found next time
        if isinstance(error, Exception | SystemExit):
            raise _import_failed(about) from None
        raise
    _stamps[name] = stamp
    return module


@contextmanager
def _watched(about: str) -> Iterator[None]:
    done, ident = threading.Event(), threading.get_ident()

    def watch() -> None:
        if done.wait(min(REPORT_S, import_s)):
            return
        report(f"{about}: still importing {_place(ident)}; the limit is {import_s:g} s")
        if not done.wait(max(0.0, import_s - REPORT_S)) and may_end():
            try:
                slow = "load what is large in a function, when it is first called"
                give_up(f"{about}: not imported within {import_s:g} s: still importing {_place(ident)}; {slow}")
            finally:
                os._exit(EXIT_CODE)

    threading.Thread(target=watch, name="import-watch", daemon=True).start()
    streams = {name: getattr(sys, name) for name in ("stdout", "stderr")}  # those of an import around this one stay
    shown = {name: _Shortened(one) for name, one in streams.items() if not isinstance(one, _Shortened | None)}
    vars(sys).update(shown)
    importing.append(about)
    try:
        with waiting("import", "", about, import_s, report_only=True):
            yield
    finally:
        done.set()
        importing.remove(about)
        for name, stream in shown.items():
            stream.left = None  # something may have kept it
            if getattr(sys, name) is stream:
                setattr(sys, name, stream.stream)


def _place(thread: int) -> str:
    """`my_reward.py, line 2` for the file that a thread imports, and where it is inside that."""
    stack = list(traceback.walk_stack(sys._current_frames().get(thread)))[::-1]
    last = max((i for i, (frame, _) in enumerate(stack) if frame.f_code.co_filename == __file__), default=-1)
    inside = itertools.islice(stack, last + 1, None)
    places = [(f.f_code.co_filename, n) for f, n in inside if not f.f_code.co_filename.startswith("<frozen importlib")]
    texts = [f"{Path(file).name}, line {line}" for file, line in places]
    if not texts:
        return "it"
    return texts[0] if places[0][0] == places[-1][0] else f"{texts[0]} (in {texts[-1]})"


class _Shortened:
    """A stream that shows the first `left` characters; None: all."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.left: int | None = SHOWN

    def write(self, text: str) -> int:
        if self.left is None:
            return self.stream.write(text)
        shown = text[: self.left]
        self.left -= len(shown)
        if shown:
            self.stream.write(shown if self.left else f"{shown}\nburnish: what this import still prints is left out\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _import_failed(about: str) -> ConfigError:
    if isinstance(error := sys.exception(), ConfigError) and str(error).startswith(about):
        return error  # which says it all, such as that the file starts a run
    return ConfigError(f"{about}: importing it failed\n{user_traceback()}")


def user_traceback(limit: int = 6000) -> str:
    """The current exception's traceback without burnish's own and the import system's frames, at most `limit` long."""
    kind, error, frames = sys.exc_info()
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith((_BURNISH, "<frozen importlib")):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(kind, error, frames)).rstrip()
    return text if len(text) <= limit else f"{text[: limit // 2]}\n...\n{text[-limit // 2 :]}"


def exit_error(error: SystemExit) -> UserError | None:
    """The mistake of code that called `sys.exit` inside of a command; None where it was burnish itself, or argparse
    for it."""
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walk_tb(error.__traceback__)]
    others = [place for place in frames if not _OWN.match(place[0])]
    if not others:
        return None
    file, line, name = others[-1]
    what = f"SystemExit({error.code!r}) from {file}, line {line}, in {name}"
    return UserError(f"{what}: code that a run calls must not end it with sys.exit; raise another exception there")


def listed(names: Iterable[str]) -> str:
    """The names in order, for a message."""
    return ", ".join(sorted(names)) or "nothing"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
