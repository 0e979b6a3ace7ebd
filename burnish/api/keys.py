"""Short names and `keys=` → the keys that a command is given, and the configuration of them."""

import itertools
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from burnish.config.build import Config, Loaded, build, complaint, flatten
from burnish.config.key import keys_of, read
from burnish.config.load import Schema
from burnish.errors import ConfigError
from burnish.tracking.run_folder import CONFIG_FILE

REQUIRED = {"model": "a Hugging Face folder, a checkpoint or a hub id", "data": "rows, or a file of rows"}
PROJECT, NAME, FOLDER = "trainer.project_name", "trainer.experiment_name", "trainer.default_local_dir"


def given_keys(schema: Schema[Any], keys: Any, short: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """All keys that were set, by dotted name. `keys` is a dict, or a configuration of `schema`, of which what is not
    at its default counts; `short` has each short name, its key, and its value (None: not given)."""
    known = keys_of(schema.root)
    if isinstance(keys, schema.root):
        if unknown := list(_unknown_in(keys)):
            raise ConfigError("\n".join(complaint(name, known) for name in unknown))
        pairs = ((name, read(keys, name), key.default) for name, key in known.items())
        given = {name: value for name, value, default in pairs if value != default}
    elif keys is None or isinstance(keys, Mapping):
        given = flatten(keys or {}, known)
    else:
        what = f"a dict of keys, or a {schema.root.__name__}"
        raise ConfigError(f"keys has the type {type(keys).__name__}; give {what}")
    for name, key, value in short:
        if value is None:
            if name in REQUIRED and key not in given:
                raise ConfigError(f"{name}= is missing; give {REQUIRED[name]}")
            continue
        if key in given:
            raise ConfigError(f"{name}= and keys[{key!r}] are the same thing; give one of them")
        given[key] = value
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


def _unknown_in(section: Any, prefix: str = "") -> Iterator[str]:
    """What was assigned to a configuration, and is no key of it."""
    names = {item.name for item in fields(section)}
    for name, value in vars(section).items():
        if name not in names:
            yield prefix + name
        elif is_dataclass(value):
            yield from _unknown_in(value, f"{prefix}{name}.")


def load(schema: Schema[Config], given: Mapping[str, Any]) -> Loaded[Config]:
    return build(given, schema.root, schema.aliases, frozenset(given))


@contextmanager
def run_folder(schema: Schema[Any], given: dict[str, Any]) -> Iterator[Path]:
    """Where a run is. One without a name gets a folder that no other has, which goes again where it does not begin."""
    if given.get(FOLDER):
        yield Path(given[FOLDER]).expanduser()
        return
    trainer = schema.root().trainer
    project = Path("outputs") / given.get(PROJECT, trainer.project_name)
    if NAME in given:
        yield project / given[NAME]
        return
    for number in itertools.count(1):
        given[NAME] = f"{trainer.experiment_name}-{number}"
        try:
            (folder := project / given[NAME]).mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"cannot make a run folder in {project}: {error.strerror}; work elsewhere") from error
    try:
        yield folder
    except BaseException:
        if not (folder / CONFIG_FILE).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise
