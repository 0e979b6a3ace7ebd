"""`burnish quickstart`: it runs, the command it prints can be pasted, and its help shows the defaults."""

import shlex
from pathlib import Path

import pytest

from burnish.cli import quickstart
from burnish.cli.main import main
from burnish.cli.quickstart import as_typed, job


@pytest.mark.parametrize("folder", ["out", "my runs/it's"])
def test_the_command_is_one_key_a_line_and_can_be_pasted(folder):
    keys = job(1, Path(folder), 60)
    text = as_typed(keys)
    assert len(text.splitlines()) == len(keys) + 1
    # A shell takes a backslash and the newline after it away; so does shlex, which splits as a shell does.
    assert shlex.split(text.replace("\\\n", "")) == ["burnish", "ppo", *keys]


def test_a_run_leaves_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quickstart, "HELD_OUT", 4)
    folder = tmp_path / "run"
    assert main(["quickstart", "--steps", "1", "--output", str(folder)]) == 0
    text = capsys.readouterr().out
    assert as_typed(job(1, folder, 1)) in text
    assert "Exact-match accuracy on 4 held-out questions" in text and "(1 steps of GRPO" in text
    assert (folder / "reward.png").exists() and (folder / "global_step_1" / "config.json").exists()


def test_the_introduction_fits_a_terminal():
    assert max(map(len, quickstart.INTRODUCTION.splitlines())) <= 80


def test_help_shows_the_defaults(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["quickstart", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "training steps [60]" in text and "run folder [outputs/quickstart;" in text
