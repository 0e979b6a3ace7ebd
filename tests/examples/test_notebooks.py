"""The notebooks of examples/ run from their first cell to the last, as in Jupyter: in one process, in whose main thread
an event loop runs, with what the last line of a cell gives shown as a notebook shows it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
KERNEL = """
import ast, asyncio, json, sys

names = {"__name__": "__main__"}


def run(source):
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
        for show in ("_repr_html_", "_repr_png_"):
            if hasattr(value, show):
                assert getattr(value, show)()
        print(repr(value))


async def kernel():
    for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            run("".join(cell["source"]))
    import threading
    assert threading.enumerate() == [threading.main_thread()], threading.enumerate()


asyncio.run(kernel())
"""


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(notebook, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, str(notebook)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)  # kept without what a run of them printed
    (run,) = (tmp_path / "outputs" / "burnish").glob("run-*")
    rewards = [json.loads(line)["critic/score/mean"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rewards[-1] > rewards[0]
