"""Load a user's function or class from a file or a module.

`load_object(path, name, ...)` gives it, or a ConfigError that names the key, the value and the fix. Runs in the scoring
process for reward functions, so that the parent never imports the user's code, and in the parent for manager classes.
No torch.
"""

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from burnish.errors import ConfigError


def load_object(path: str, name: str, path_key: str, name_key: str) -> Any:
    """The callable `name` in the file or module `path`; the errors speak of the configuration keys that gave them."""
    module = _load_module(path, path_key)
    if not hasattr(module, name):
        there = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise ConfigError(
            f"{name_key}={name}: {path} has no such name; it defines {listed(there)}{nearest(name, there)}"
        )
    found = getattr(module, name)
    if not callable(found):
        raise ConfigError(f"{name_key}={name}: in {path} it is of type {type(found).__name__} and cannot be called")
    return found


def _load_module(path: str, key: str) -> ModuleType:
    file = Path(path).expanduser()
    if path.endswith(".py") or file.is_file() or "/" in path:
        return _load_file(path, file, key)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not (path == error.name or path.startswith(error.name + ".")):
            raise _import_failed(path, key) from None
        raise ConfigError(
            f"{key}={path}: no such file, and no module of that name; give a .py file or an importable module"
        ) from None
    except (Exception, SystemExit):  # noqa: BLE001  whatever a user's module raises is the user's to mend
        raise _import_failed(path, key) from None


def _load_file(path: str, file: Path, key: str) -> ModuleType:
    if not file.is_file():
        near = nearest(file.name, [p.name for p in file.parent.glob("*.py")]) if file.parent.is_dir() else ""
        problem = "is a folder, not a .py file" if file.is_dir() else f"no such file (looked for {file.absolute()})"
        raise ConfigError(f"{key}={path}: {problem}{near}")
    resolved = file.resolve()
    module_name = "burnish_user_" + "".join(c if c.isalnum() else "_" for c in str(resolved))
    spec = importlib.util.spec_from_file_location(module_name, resolved)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{key}={path}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look a class's module up while the file runs
    if str(resolved.parent) not in sys.path:
        sys.path.append(str(resolved.parent))  # so that the file can import its neighbours
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit):  # noqa: BLE001  as above
        raise _import_failed(path, key) from None
    return module


def _import_failed(path: str, key: str) -> ConfigError:
    return ConfigError(f"{key}={path}: importing it failed\n{user_traceback()}")


def user_traceback(limit: int = 6000) -> str:
    """The current exception's traceback without burnish's own and the import system's frames, at most `limit` long."""
    kind, error, frames = sys.exc_info()
    hidden = (str(Path(__file__).resolve().parent), "<frozen importlib")
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(hidden):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(kind, error, frames)).rstrip()
    return text if len(text) <= limit else f"{text[: limit // 2]}\n...\n{text[-limit // 2 :]}"


def listed(names: Iterable[str]) -> str:
    """The names in order, for a message."""
    return ", ".join(sorted(names)) or "nothing"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?`, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
