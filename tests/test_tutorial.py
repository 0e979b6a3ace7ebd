"""docs/tutorial.md as a reader types it, from an empty folder, with the embedded model and two steps."""

import io
import re
import runpy
import shlex
import signal
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.tracking.jsonl import read_metrics
from burnish.web.server import HttpServer
from tests.test_docs import ROOT, blocks

HEREDOC = re.compile(r"^cat > (\S+) <<'END'\n(.*?)^END$\n?", re.MULTILINE | re.DOTALL)
SMALL = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": "burnish/models/nano",
    "total_training_steps: 60": "total_training_steps: 2",
    "total_training_steps=20": "total_training_steps=2",
    "train_batch_size: 64": "train_batch_size: 4",
    "n: 8": "n: 2",
    "test_freq: 10": "test_freq: 2\n  device: cpu",
    "sums[:256]": "sums[:16]",
}
SERVERS = ("serve", "dashboard")
INSTALLS = ("python3 -m venv", "source", "pip", "mkdir", "cd")


@pytest.fixture
def run(monkeypatch):
    """Run a line of the page in this process; a server takes a free port, and ends once it takes requests."""
    startup = HttpServer.startup

    async def once(self, sockets=None):
        await startup(self, sockets)
        self.handle_exit(signal.SIGTERM, None)

    monkeypatch.setattr(HttpServer, "startup", once)

    def line(text):
        typed, _, command = text.rpartition(" | ")
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{word}\n" for word in shlex.split(typed)[1:])))
        program, *words = shlex.split(command, comments=True)
        if program == "python3":
            runpy.run_path(words[0], run_name="__main__")
            return 0
        assert program == "burnish", text
        return main(words + ["--port", "0"] * (words[0] in SERVERS))

    return line


@pytest.mark.slow
def test_the_tutorial_runs_from_an_empty_folder(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    lines = []
    for block in blocks(ROOT / "docs/tutorial.md", "bash"):
        for text, small in SMALL.items():
            block = block.replace(text, small)
        for name, text in HEREDOC.findall(block):
            Path(name).write_text(text)
        lines += [line for line in HEREDOC.sub("", block).replace("\\\n", " ").splitlines() if line.strip()]
    codes = {line: run(line) for line in lines if not line.startswith((*INSTALLS, "#"))}
    may_find = {line for line in codes if line.startswith("burnish doctor")}
    assert len(may_find) >= 2 and all(code == 0 for line, code in codes.items() if line not in may_find)
    runs = {folder.name: read_metrics(folder) for folder in Path("outputs/burnish").iterdir()}
    assert len(runs) == 5 and all(lines[-1]["step"] == 2 for lines in runs.values())
