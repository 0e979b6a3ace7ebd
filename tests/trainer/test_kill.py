"""Kills at any moment of a run, then the same command again (tests/trainer/kills): everything is that of a run never
killed. And the campaign finds what it is there to find."""

import json
import shutil
from pathlib import Path

import pytest

from tests.trainer.kills.campaign import Campaign
from tests.trainer.kills.folder import compared, problems
from tests.trainer.kills.kinds import KINDS, STEPS

LONG = pytest.mark.long


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    with Campaign(tmp_path_factory.mktemp("kills"), say=print) as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("grpo", 1),
        *(pytest.param(kind, 3, marks=LONG) for kind in ("ppo", "grpo-behind", "ppo-behind", "lora-behind", "command")),
    ],
)
def test_kills_at_random_moments_change_nothing(campaign, kind, kills):
    assert campaign.run(kills, [kind]) == kills, "runs were over before they could be killed"
    assert not campaign.wrong


@pytest.fixture
def finished(campaign, tmp_path):
    return shutil.copytree(campaign.whole("grpo")[0], tmp_path / "run", symlinks=True)


def write_twice(file: Path) -> None:
    file.write_text(file.read_text() * 2)


def tear(file: Path) -> None:
    file.write_text(file.read_text()[:-9])


@pytest.mark.parametrize(
    ("name", "harm", "found"),
    [
        (f"global_step_{STEPS - 1}/actor/model.safetensors", Path.unlink, "visible, but not complete"),
        (f"global_step_{STEPS - 1}/manifest.json", Path.unlink, "visible, but not complete"),
        (f"global_step_{STEPS}", shutil.rmtree, f"names step {STEPS}, which is not there"),
        ("config.yaml.tmp", Path.touch, "none of a run's files"),
        ("rollouts/2.jsonl", tear, "rollouts/2.jsonl: torn"),
        ("metrics.jsonl", write_twice, "metrics.jsonl has the steps"),
    ],
)
def test_harm_to_a_run_folder_is_found(finished, name, harm, found):
    assert problems(finished) == []
    harm(finished / name)
    assert any(found in text for text in problems(finished))


@pytest.mark.parametrize("kind", ["grpo", "staleness-1"])
def test_a_prompt_that_is_lost_or_trained_twice_is_found(campaign, finished, kind):
    def check():
        return compared(KINDS[kind], campaign.whole("grpo")[0], finished)

    assert check() == []
    file = finished / "rollouts" / "2.jsonl"
    first, *others = file.read_text().splitlines(keepends=True)
    for lines in (others, [first, first, *others], [json.dumps(json.loads(first) | {"uid": 99}) + "\n", *others]):
        file.write_text("".join(lines))
        assert len(check()) == 1
