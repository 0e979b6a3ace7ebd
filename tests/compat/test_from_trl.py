"""docs/from-trl.md: every key of burnish exists, the default named is the default, and its function runs."""

import re
from pathlib import Path

import pytest

from burnish.config import PPOConfig, RMConfig, SFTConfig
from burnish.config.key import keys_of
from burnish.config.values import show

PAGE = (Path(__file__).parents[2] / "docs/from-trl.md").read_text()
TRAINERS = {"GRPOTrainer": PPOConfig, "PPOTrainer": PPOConfig, "SFTTrainer": SFTConfig, "RewardTrainer": RMConfig}


def rows(trainer):
    """The lines of a trainer's table, as cells."""
    (text,) = [part for part in PAGE.split("\n## ") if part.startswith(f"{trainer}\n")]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_keys_and_defaults_are_right(trainer):
    known = keys_of(TRAINERS[trainer])
    named = 0
    for _, name, default, _ in rows(trainer):
        if name:
            assert show(known[name.strip("`")].default) == default.strip("`"), name
            named += 1
    assert named > 4


def test_the_function_of_the_page_scores():
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names = {}
    exec(block, names)
    assert [names["compute_score"](text, "4", {}) for text in (" 4", "5")] == [1.0, 0.0]
