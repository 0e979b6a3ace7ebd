"""Advantage estimators (`algorithm.adv_estimator`): rewards in, advantages and returns out.

An estimator is one function in one short file:

    from burnish.algorithms.advantages import Needs, register_adv_est

    @register_adv_est("centred", needs=Needs(groups=True))
    def centred(inputs):                       # an AdvantageInputs, see inputs.py
        advantages = inputs.on_tokens(inputs.scores - inputs.groups.mean(inputs.scores))
        return advantages, advantages          # advantages (B, R), returns (B, R)

It is used with `algorithm.adv_estimator=my.module:centred`, or by its registered name once its module is imported.
What it declares as `needs` is what the run around it provides. This module imports no torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from burnish.algorithms.table import NOTHING, Entry, Fn, Table
from burnish.config.needs import Needs

if TYPE_CHECKING:
    import torch

    from burnish.algorithms.advantages.inputs import AdvantageInputs

Estimator: TypeAlias = "Callable[[AdvantageInputs], tuple[torch.Tensor, torch.Tensor]]"

LATER = (
    "grpo_vectorized", "grpo_passk", "gdpo", "rloo", "rloo_vectorized", "reinforce_plus_plus",
    "reinforce_plus_plus_baseline", "remax", "opo", "gpg", "optimal_token_baseline", "tir_optimal_token_baseline",
    "prime",
)  # fmt: skip

TABLE = Table(
    key="algorithm.adv_estimator",
    entries={
        "gae": Entry("burnish.algorithms.advantages.gae:gae", Needs(critic=True)),
        "grpo": Entry("burnish.algorithms.advantages.grpo:grpo", Needs(groups=True)),
    },
    later=LATER,
)


def estimator(name: str) -> Estimator:
    """The function behind a name or an import path `my.module:function`."""
    return TABLE.load(name)


def needs_of(name: str) -> Needs:
    """What the run must provide for this estimator."""
    return TABLE.needs_of(name)


def register_adv_est(name: str, needs: Needs = NOTHING) -> Callable[[Fn], Fn]:
    """Decorator: makes a function an estimator that the configuration can name."""
    return TABLE.register(name, needs)
