"""console.log: what is shown on the terminal, kept in the run folder."""

import logging
import sys

import rich
from rich.console import Console

from burnish.entry.guard import guard
from burnish.errors import ConfigError
from burnish.tracking import RunFolder, Tracker
from burnish.tracking.transcript import recorded


def lines(folder):
    return (folder.path / "console.log").read_text().splitlines()


def test_a_command_leaves_what_it_showed_also_before_the_run_began_and_after_it(trainer, folder, capsys):
    trainer.logger = ["console"]

    def command(argv):
        print("before the folder is known")
        with Tracker(trainer, folder) as tracker:
            tracker.log({"reward/mean": 0.5}, 1)
            logging.getLogger("burnish.x").warning("a gap of %d", 3)
        raise ConfigError("it cannot be")

    stdout = sys.stdout
    assert guard(command, []) == 2 and sys.stdout is stdout
    shown, kept = capsys.readouterr(), lines(folder)
    assert kept[:2] == ["before the folder is known", "step:1 - reward/mean:0.500"]
    assert kept[2].endswith("WARNING burnish.x: a gap of 3") and kept[-1] == "burnish: error: it cannot be"
    assert sorted([*shown.out.splitlines(), *shown.err.splitlines()]) == sorted(kept)


def test_a_resumed_run_adds_to_it_and_a_new_one_begins_its_own(trainer, folder):
    for text, start in (
        ("first", Tracker.start),
        ("second", lambda tracker: tracker.resume(0)),
        ("third", Tracker.start),
    ):
        with RunFolder.of(trainer) as again, Tracker(trainer, again) as tracker:
            print(text)
            start(tracker)
    assert lines(folder) == ["third"]
    assert (folder.path / "previous-1/console.log").read_text() == "first\nsecond\n"


def test_redrawn_lines_are_kept_as_they_end_and_without_colours(trainer, folder, monkeypatch):
    trainer.logger = ["console"]
    with recorded():
        console = Console(force_terminal=True, width=60)  # as on a terminal: a table over a line that is redrawn
        monkeypatch.setattr(rich, "get_console", lambda: console)
        with Tracker(trainer, folder, total_steps=2) as tracker:
            for step in (1, 2):
                tracker.log({"critic/score/mean": step / 2}, step)
        print("10%\r50%", end="")
        print("\r100%\r\n\x1b[31mred\x1b[0m")
    assert [line.split() for line in lines(folder)[:3]] == [["step", "reward"], ["1", "0.500"], ["2", "1.000"]]
    assert "step 2/2" in lines(folder)[3] and lines(folder)[-2:] == ["100%", "red"]
