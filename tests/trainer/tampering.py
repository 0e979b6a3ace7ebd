"""What someone may do to a checkpoint folder, and what a run must say of it.

`SEEN` is noticed when the checkpoint is verified, so that a run passes over it. `SEALED` is done by someone who also
writes a manifest that fits, and is refused when the checkpoint is read.
"""

import json
import os
import pickle
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from burnish.trainer.checkpoint import CheckpointStore, step_of

Tamper = Callable[[Path], object]
DEEP = "[" * 100_000 + "]" * 100_000
LONG_NUMBER = "9" * 5000
STATE, ENGINE = "data/trainer.json", "actor/engine.json"
TENSORS = ("actor/masters.safetensors", "actor/optimizer.safetensors", "actor/rng.safetensors")


def seal(folder: Path) -> None:
    """Give a folder a manifest of what is in it now."""
    (folder / "manifest.json").unlink()
    CheckpointStore(folder.parent)._seal(folder, step_of(folder))


class Code:
    """Unpickling it leaves a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch code-was-run",)


def text(name: str, content: str) -> Tamper:
    return lambda folder: (folder / name).write_text(content)


def raw(name: str, content: bytes) -> Tamper:
    return lambda folder: (folder / name).write_bytes(content)


def edit(name: str, **changes: Any) -> Tamper:
    """Other values in a JSON file; a dotted key is one further down."""

    def change(folder: Path) -> None:
        whole = json.loads((folder / name).read_text())
        for key, value in changes.items():
            *above, last = key.split("__")
            inside = whole
            for part in above:
                inside = inside[part]
            if value is ...:
                del inside[last]
            else:
                inside[last] = value
        (folder / name).write_text(json.dumps(whole))

    return change


def listed(name: str, size: Any = 1) -> Tamper:
    return lambda folder: edit("manifest.json", files={name: size})(folder)


def flip(name: str) -> Tamper:
    """One bit, in the middle of a file."""

    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return change


def of_neighbour(name: str) -> Tamper:
    return lambda folder: shutil.copy(folder.with_name("global_step_1") / name, folder / name)


def elsewhere(name: str) -> Tamper:
    """A link to the same bytes outside of the folder."""

    def change(folder: Path) -> None:
        outside = (folder / name).rename(folder.absolute().parent.parent / f"outside-{Path(name).name}")
        (folder / name).symlink_to(outside)

    return change


def instead(name: str, make: Callable[[Path], object]) -> Tamper:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:  # the name of one is short, so it is made in its folder
        before = os.getcwd()
        os.chdir(path.parent)
        server.bind(path.name)
        os.chdir(before)


def tensors(name: str, change: Callable[[dict], dict]) -> Tamper:
    return lambda folder: save_file(change(load_file(folder / name)), folder / name)


def case(name: str, tamper: Tamper, words: str) -> Any:
    return pytest.param(tamper, words, id=name)


NO_MANIFEST = "manifest.json is missing or damaged"
SEEN = [
    *(
        case(f"a flipped bit in {name}", flip(name), f"{name} is not what was written")
        for name in (*TENSORS, STATE, ENGINE, "actor/model.safetensors", "actor/config.json", "actor/tokenizer.json")
    ),
    case("tensors of another step", of_neighbour(TENSORS[1]), f"{TENSORS[1]} (is not what was written|has)"),
    case("tensors cut off", lambda folder: os.truncate(folder / TENSORS[0], 100), f"{TENSORS[0]} has 100 bytes"),
    case("tensors with more after them", lambda folder: os.truncate(folder / TENSORS[0], 10**7), "has 10000000 bytes"),
    case("an empty file", text(STATE, ""), f"{STATE} has 0 bytes"),
    case("a file that is gone", lambda folder: (folder / STATE).unlink(), f"{STATE} is missing"),
    case("a folder in place of a file", instead(STATE, Path.mkdir), f"{STATE} is missing"),
    case("a pickle in place of tensors", raw(TENSORS[0], pickle.dumps(Code())), f"{TENSORS[0]} has"),
    case("deep nesting", text(STATE, DEEP), f"{STATE} has 200000 bytes"),
    *(
        case(f"a manifest of {name}", text("manifest.json", content), NO_MANIFEST)
        for name, content in {
            "nothing": "",
            "a list": "[]",
            "deep nesting": DEEP,
            "a number of 5000 digits": '{"step": ' + LONG_NUMBER + ', "files": {"x": 1}}',
            "no files": '{"files": {}}',
            "files in a list": '{"files": ["actor/config.json"]}',
            "files that are a number": '{"files": 3}',
            "digests in a list": '{"files": {"x": 1}, "sha256": ["x"]}',
        }.items()
    ),
    case("a manifest of other bytes", raw("manifest.json", b"\xff\xfe\x00{"), NO_MANIFEST),
    case("no manifest", lambda folder: (folder / "manifest.json").unlink(), NO_MANIFEST),
    case("a folder as manifest", instead("manifest.json", Path.mkdir), NO_MANIFEST),
    case("a pipe as manifest", instead("manifest.json", os.mkfifo), NO_MANIFEST),
    case("an endless manifest", instead("manifest.json", lambda path: path.symlink_to("/dev/zero")), NO_MANIFEST),
    case("a name above", listed("../../secret"), "manifest.json names '../../secret', which is outside"),
    case("a name above, inside", listed("actor/../../../secret"), "which is outside"),
    case("a name from the root", listed("/etc/passwd"), "manifest.json names '/etc/passwd', which is outside"),
    case("a name with a zero byte", listed("a\0b"), r"a\\x00b is missing"),
    case("a name of two lines", listed("a\nburnish: all is well"), r"a\\nburnish: all is well is missing"),
    case("a name that moves the cursor", listed("\x1b[2Ja"), r"\\x1b\[2Ja is missing"),
    case("a name of half a character", listed("\ud800"), "is missing"),
    case("a name too long", listed("a" * 5000), "cannot be read .*File name too long"),
    case("a file counted as a folder", listed("actor"), "actor is missing"),
    *(
        case(f"a size of {size!r}", listed(STATE, size), f"{STATE} has [0-9]+ bytes instead of")
        for size in (-1, "many", 10**30, 0.5, None, [])
    ),
    case("a wrong digest", edit("manifest.json", sha256={STATE: "0" * 64}), f"{STATE} is not what was written"),
    case("a digest that is a number", edit("manifest.json", sha256={STATE: 7}), f"{STATE} is not what was written"),
    *(
        case(f"the step {step!r:.20}", edit("manifest.json", step=step), "manifest.json is of step")
        for step in (-2, 1, 10**400, "two", None, [2], 2.5)
    ),
    *(
        case(f"a link out of it for {name}", elsewhere(name), f"{name} is a link that leads out of it")
        for name in (TENSORS[0], STATE, ENGINE, "data")
    ),
    case("a link out of it, for links into it", elsewhere("actor"), "is a link that leads out of it"),
    case("a link to the machine", lambda folder: (folder / "etc").symlink_to("/etc"), "etc is a link that leads out"),
    case("a link around", lambda folder: (folder / "up").symlink_to("../../.."), "up is a link that leads out"),
    case("endless tensors", instead(TENSORS[0], lambda path: path.symlink_to("/dev/zero")), "a link that leads out"),
    case("a link to itself", instead(STATE, lambda path: path.symlink_to(path.name)), f"{STATE} is missing"),
    case("a pipe", lambda folder: os.mkfifo(folder / "actor/pipe"), "actor/pipe is no file and no folder"),
    case("a pipe for the state", instead(STATE, os.mkfifo), f"{STATE} is no file and no folder"),
    case("a socket", lambda folder: listening(folder / "socket"), "socket is no file and no folder"),
]

SEALED = [
    *(
        case(f"a state of {name}", text(STATE, content), f"{STATE}: {words}")
        for name, content, words in (
            ("nothing", "", "not readable as JSON"),
            ("deep nesting", DEEP, "not readable as JSON"),
            ("a list", "[1]", "expected an object, found a list"),
            ("a number", "3", "expected an object, found a int"),
            ("a number of 5000 digits", LONG_NUMBER, "not readable as JSON"),
        )
    ),
    case("a state of other bytes", raw(STATE, b"\xff\xfe{"), f"{STATE}: not readable as JSON"),
    case("no state", lambda folder: (folder / STATE).unlink(), f"it has no {STATE}"),
    *(
        case(f"no {part}", edit(STATE, **{part: ...}), f"{STATE} is damaged .no {part}")
        for part in ("experience", "run", "bad_steps")
    ),
    *(
        case(f"{part} as {value!r:.20}", edit(STATE, **{part: value}), f"{STATE} is damaged .{part} is a")
        for part in ("experience", "kl", "correction", "bad_steps", "run", "config")
        for value in ([], "text", 7)
    ),
    *(
        case(f"the position {value!r:.20}", edit(STATE, experience__position=value), f"{STATE} is damaged .position is")
        for value in (-1, "four", 2.5, True, None, 10**30, [1])
    ),
    case("no position", edit(STATE, experience__position=...), f"{STATE} is damaged .*position"),
    *(
        case(f"bad steps of {value!r}", edit(STATE, bad_steps={"actor": value}), f"{STATE} is damaged .actor is no")
        for value in (-1, "one", None)
    ),
]

# What only the processes that load the model see; more of it in engine/test_state.py.
LOADED = [
    case("a training state of deep nesting", text(ENGINE, DEEP), "engine.json: not readable as JSON"),
    case("shards without end", edit(ENGINE, format=3, shards=10**12, save="x"), "masters-00001-of-1000000000000"),
    *(case(f"a pickle as {name}", raw(name, pickle.dumps(Code())), name) for name in TENSORS),
    case("no tensors", tensors(TENSORS[0], lambda found: {}), "it has no parameter"),
    case(
        "tensors that changed places",
        tensors(TENSORS[0], lambda found: dict(zip(found, reversed(found.values()), strict=True))),
        "checkpoint of another model",
    ),
    case("tensors of another type", tensors(TENSORS[0], lambda found: {k: v.half() for k, v in found.items()}), "type"),
]
