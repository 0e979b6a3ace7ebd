"""Users' files and modules: the rules that every part shares. Messages are tested with the parts that give them."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from burnish import user_code
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


def test_what_is_loaded_is_found_without_a_watch(write, monkeypatch):
    path = write("def f(): ...")
    found = load_object(path, "f", *KEYS)
    monkeypatch.setattr(user_code, "_watched", pytest.fail)
    assert load_object(path, "f", *KEYS) is found and load_target("os:getcwd", "k") is os.getcwd


def test_a_file_that_failed_is_run_again(write):
    path = write("def f(): ...\n1 / 0")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"some.path=\S*mine.py: importing it failed\n(.|\n)*ZeroDivisionError"):
            load_object(path, "f", *KEYS)


def test_a_file_that_starts_a_run_is_refused_in_one_sentence(write):
    path = write("import burnish\ndef f(): ...\nburnish.train()")
    with pytest.raises(ConfigError, match=r"^some.path=\S*mine.py: this file calls burnish.train [^\n]*$"):
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


SLOW = {
    "a loop": ("import time\n\nwhile True:\n    time.sleep(0.01)", "hangs.py, line "),
    "a hang": ("import threading\nthreading.Event().wait()", "hangs.py, line 2 (in threading.py, line "),
    "a neighbour": ("import hangs_too", "hangs.py, line 1 (in hangs_too.py, line 2)"),
}


@pytest.mark.hostile
@pytest.mark.parametrize("kind", SLOW)
def test_import_that_hangs_is_reported_with_its_line_and_ends_the_process_at_its_limit(write, tmp_path, kind):
    source, place = SLOW[kind]
    path = write(source, "hangs.py")
    write("import time\ntime.sleep(1e6)", "hangs_too.py")
    program = """
        import sys
        from burnish import user_code
        user_code.REPORT_S, user_code.import_s = 0.5, 1.5
        user_code.load_target(sys.argv[1], "some.key")
    """
    command = [sys.executable, "-c", textwrap.dedent(program), f"{path}:f"]
    root = str(Path(user_code.__file__).parents[1])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 3
    slow, ended = done.stderr.splitlines()
    assert slow.startswith(f"some.key={path}:f: still importing hangs.py, line ")
    assert ended.startswith(f"some.key={path}:f: not imported within 1.5 s: still importing hangs.py, line ")
    assert place in slow and ended.endswith("; load what is large in a function, when it is first called")


@pytest.mark.hostile
def test_of_what_an_import_prints_the_beginning_is_shown(write, capsys, monkeypatch):
    monkeypatch.setattr(user_code, "SHOWN", 10)
    source = "import sys\nout = sys.stdout\nfor i in range(1000): print('123456')\nprint('ab', file=sys.stderr)"
    load_object(write(f"{source}\ndef f(): print('later', file=out)"), "f", *KEYS)()
    captured = capsys.readouterr()
    assert captured.out == "123456\n123\nburnish: what this import still prints is left out\nlater\n"
    assert captured.err == "ab\n" and sys.stdout.write("") == 0


def test_imports_of_two_threads_leave_the_streams_as_they_were():
    before = sys.stdout, sys.stderr
    first, second = (user_code._watched(name) for name in "ab")
    for one in (first, second):
        one.__enter__()
    for one in (first, second):
        one.__exit__(None, None, None)
    assert (sys.stdout, sys.stderr) == before
