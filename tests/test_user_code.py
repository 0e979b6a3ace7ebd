"""Users' files and modules: the rules that every part shares. Messages are tested with the parts that give them."""

import os

import pytest

from burnish.errors import ConfigError
from burnish.user_code import load_class, load_object, load_target

KEYS = ("some.path", "some.name")


@pytest.fixture
def write(tmp_path):
    def write(text, name="mine.py"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_file_and_module_in_every_form(write, tmp_path, monkeypatch):
    write("class Thing: ...", "forms_of_address.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in (f"{tmp_path}/forms_of_address.py", "forms_of_address.py", "~/forms_of_address.py", "forms_of_address"):
        assert load_class(path, "Thing", *KEYS).__name__ == "Thing"
        assert load_target(f"{path}:Thing", "some.key").__name__ == "Thing"
    assert load_target("forms_of_address.Thing", "some.key").__name__ == "Thing"


def test_neighbours_can_be_imported(write):
    write("HALF = 0.5", "a_file_beside_mine.py")
    assert load_object(write("from a_file_beside_mine import HALF\ndef f(): return HALF"), "f", *KEYS)() == 0.5


def test_what_one_file_holds_is_shared_until_the_file_changes(write):
    path = write("count = []\ndef add(): count.append(1); return len(count)")
    assert [load_object(path, "add", *KEYS)(), load_target(f"{path}:add", "k")()] == [1, 2]
    write("def add(): return 'new'")
    os.utime(path, ns=(1, 1))
    assert load_object(path, "add", *KEYS)() == "new"


def test_a_file_that_failed_is_run_again(write):
    path = write("def f(): ...\n1 / 0")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"some.path=\S*mine.py: importing it failed\n(.|\n)*ZeroDivisionError"):
            load_object(path, "f", *KEYS)


def test_a_dataclass_finds_its_module(write):
    path = write("import dataclasses\n@dataclasses.dataclass\nclass Thing:\n    x: 'int' = 3")
    assert load_class(path, "Thing", *KEYS)().x == 3


@pytest.mark.parametrize("target", ["Alone", "file.py", "module:", ":Name", "folder/file.py"])
def test_a_target_names_a_place_and_a_thing(target):
    with pytest.raises(ConfigError, match=f"^some.key={target}: expected package.module:Name"):
        load_target(target, "some.key")


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("no_such_module", "f", "some.path=no_such_module: no such file, and no module of that name"),
        ("/tmp", "f", "some.path=/tmp: is a folder, not a .py file"),
        (None, "f", "some.path is not set: give a .py file or an importable module"),
        ("json", None, "some.name is not set: name one of the objects in json, which defines .*dumps"),
        ("json", "dmps", "some.name=dmps: json has no such name; .*; did you mean dumps?"),
        ("json", "__doc__", "some.name=__doc__: in json it is of type str and cannot be called"),
        ("json", "dumps", "some.name=dumps: in json it is a function, and a class is needed"),
    ],
)
def test_messages(path, name, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        load_class(path, name, *KEYS)
