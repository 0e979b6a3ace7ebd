"""`burnish replay`: its help, without torch, has an example that parses. tests/trainer/test_replay.py has the rest."""

import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.cli.replay import parser

ROOT = Path(__file__).parents[2]


def test_the_example_of_the_help_is_a_command(capsys):
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    words = capsys.readouterr().out.partition("example:\n  burnish ")[2].split()
    options = parser().parse_args(words[1:])
    assert words[0] == "replay" and options.keys == ["trainer.device=cpu"]
    assert Path(options.dump).parent.name == "bad_steps"


def test_a_dump_is_asked_for(capsys):
    assert main(["replay"]) == 2
    assert "burnish replay: the following arguments are required: dump" in capsys.readouterr().err


def test_help_comes_without_torch():
    program = (
        "import sys\n"
        "from burnish.cli.main import main\n"
        "try:\n"
        "    main(['replay', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "assert not {'torch', 'transformers', 'hydra'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
