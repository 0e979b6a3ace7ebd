"""Policy losses (`actor.policy_loss.loss_mode`): log-probs and advantages in, the loss of a micro-batch out.

A loss is one function in one short file:

    from burnish.algorithms.losses import register_policy_loss

    @register_policy_loss("plain")
    def plain(inputs):                                       # a PolicyLossInputs, see inputs.py
        return inputs.aggregate(-inputs.advantages * inputs.log_prob), {}      # a scalar, and its metrics

It is used with `actor_rollout_ref.actor.policy_loss.loss_mode=my.module:plain`, or by its registered name once its
module is imported. `inputs.aggregate` divides by the counts of the whole mini-batch, so a loss written this way does
not depend on how the batch is cut; metrics are the `Sum` and `Mean` of `algorithms/tally.py` for the same reason.
`regularise.py` has the entropy and KL terms, `value.py` is the critic's loss. This module imports no torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from burnish.algorithms.table import NOTHING, Entry, Fn, Table
from burnish.config.needs import Needs

if TYPE_CHECKING:
    import torch

    from burnish.algorithms.losses.inputs import PolicyLossInputs
    from burnish.algorithms.tally import Metrics

PolicyLoss: TypeAlias = "Callable[[PolicyLossInputs], tuple[torch.Tensor, Metrics]]"

LATER = ("gspo", "gpg", "clip_cov", "kl_cov", "geo_mean", "cispo", "sapo", "dppo_tv", "dppo_kl", "dro", "reinforce")

TABLE = Table(
    key="actor_rollout_ref.actor.policy_loss.loss_mode",
    entries={
        "vanilla": Entry("burnish.algorithms.losses.vanilla:vanilla"),
    },
    later=LATER,
)


def policy_loss(name: str) -> PolicyLoss:
    """The function behind a name or an import path `my.module:function`."""
    return TABLE.load(name)


def needs_of(name: str) -> Needs:
    """What the run must provide for this loss."""
    return TABLE.needs_of(name)


def register_policy_loss(name: str, needs: Needs = NOTHING) -> Callable[[Fn], Fn]:
    """Decorator: makes a function a policy loss that the configuration can name."""
    return TABLE.register(name, needs)
