"""The environment of a program's processes."""

import os
import site
import subprocess
import sys
from pathlib import Path

import burnish
from burnish.rollout.hosted.arguments import environment, python_path

ROOT = Path(burnish.__file__).parents[1]


def test_what_the_user_set_comes_before_defaults_and_after_what_is_fixed(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_A_TEST", "user")
    assert environment(tmp_path, {"OF_A_TEST": "default", "ANOTHER": "default"}, {})["OF_A_TEST"] == "user"
    assert environment(tmp_path, {}, {"OF_A_TEST": "fixed"})["OF_A_TEST"] == "fixed"
    assert environment(tmp_path, {"ANOTHER": "default"}, {})["ANOTHER"] == "default"
    assert environment(tmp_path, {}, {})["TMPDIR"] == str(tmp_path)


def test_where_burnish_lies_comes_last(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert python_path() == os.pathsep.join([str(tmp_path), str(ROOT)])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path)]))
    assert python_path() == os.pathsep.join([str(ROOT), str(tmp_path)])


def test_other_packages_beside_burnish_do_not_come_before_the_standard_library(monkeypatch):
    monkeypatch.setattr(site, "getsitepackages", lambda: ["/elsewhere", str(ROOT)])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert python_path() == ""


def test_another_process_imports_burnish_from_the_same_place(tmp_path):
    told = subprocess.run(
        [sys.executable, "-P", "-c", "import burnish; print(burnish.__file__)"],
        env=os.environ | {"PYTHONPATH": python_path()},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == burnish.__file__
