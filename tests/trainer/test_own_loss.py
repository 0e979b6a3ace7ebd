"""A loss of one's own in the loop: what it must return, and what it reports without saying so."""

import math
from pathlib import Path

import pytest

from burnish.errors import ConfigError

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "data.val_files=null",
        "trainer.total_training_steps=1", "actor_rollout_ref.actor.policy_loss.loss_mode=mine.py:mine"]  # fmt: skip
PLAIN = "inputs.aggregate(-inputs.advantages * inputs.policy_log_prob)"
WRONG = {
    "nothing": ("None", "returned a NoneType; (loss, dictionary of metrics) is needed"),
    "a loss alone": (PLAIN, "returned a Tensor; (loss, dictionary of metrics) is needed"),
    "a loss per token": ("inputs.log_prob, {}", "returned a tensor of shape"),
    "a number": ("3.0, {}", "returned a float as its loss; a scalar made from inputs.log_prob is needed"),
    "no gradient": ("inputs.aggregate(inputs.advantages), {}", "a scalar made from inputs.log_prob is needed"),
    "a bare metric": (f"{PLAIN}, {{'actor/mine': 1.0}}", "returned a float as metric 'actor/mine'; a tally is needed"),
}


def write(returned: str) -> None:
    Path("mine.py").write_text(f"def mine(inputs):\n    return {returned}\n")


@pytest.mark.parametrize(("returned", "message"), WRONG.values(), ids=WRONG)
def test_what_it_returns_is_checked(train, returned, message):
    write(returned)
    with pytest.raises(ConfigError) as error:
        train(*GRPO)
    assert message in str(error.value) and "loss_mode=mine.py:mine" in str(error.value)


def test_it_reports_what_every_loss_does(train, metrics_of):
    write(f"{PLAIN}, {{}}")
    train(*GRPO)
    [line] = metrics_of("run")
    assert line["actor/pg_loss"] == line["actor/loss"] != 0 and math.isfinite(line["actor/ppo_kl"])
