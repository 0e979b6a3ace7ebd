"""Programs that a test puts first on the PATH of the scripts it runs."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTE = """#!{python}
import json, os, sys
with open({notes!r}, "a") as file:
    file.write(json.dumps([os.environ.get("PYTHONPATH", ""), {name!r}, *sys.argv[1:]]) + "\\n")
"""


def noting(name: str, notes: Path) -> str:
    """A program that appends its PYTHONPATH, this name and its arguments to `notes`, as a line of JSON."""
    return NOTE.format(python=sys.executable, notes=str(notes), name=name)


def on_path(folder: Path, programs: dict[str, str]) -> dict[str, str]:
    """An environment with these programs, name to text, and with the package."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": python_path}
