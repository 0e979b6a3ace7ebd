"""Programs that a test puts first on the PATH of the scripts it runs."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def on_path(folder: Path, programs: dict[str, str]) -> dict[str, str]:
    """An environment with these programs, name to text, and with the package."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": python_path}
