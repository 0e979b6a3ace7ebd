"""Policy losses (`actor.policy_loss.loss_mode`): log-probs and advantages in, the loss of a micro-batch out.

A loss is one function in one short file:

    from burnish.algorithms.losses import register_policy_loss

    @register_policy_loss("plain")
    def plain(inputs):                                       # a PolicyLossInputs, see inputs.py
        losses = inputs.weigh(-inputs.advantages * inputs.policy_log_prob)     # (B, R)
        return inputs.aggregate(losses), {}                                    # a scalar, and its metrics

It is used with `actor_rollout_ref.actor.policy_loss.loss_mode=my.module:plain`, or by its registered name once its
module is imported. `inputs.aggregate` divides by the counts of the whole mini-batch, so a loss written this way does
not depend on how the batch is cut; metrics are the tallies of `algorithms/tally.py` for the same reason.

A loss whose treatment of one token depends on all tokens of the mini-batch (the largest covariances, say) cannot know
them from a micro-batch. It registers a second function, `choose(inputs, random)`, which is called once per
mini-batch with the log-probs of a pass without gradient over all its rows. It returns a boolean tensor (B, R), and the
loss finds its rows of it in `inputs.chosen`. `random` is a `torch.Generator` on the CPU, the same for the same step of
the same run.

What `needs` says about a loss besides its outputs: `ratio`, that it weighs tokens by their ratio to the policy that
sampled them, so that correction weights against that policy would count twice; `skips_zero_advantage`, that a row whose
advantages are all 0 adds nothing to the gradient, so that the row need not be computed.

`regularise.py` has the entropy and KL terms, `value.py` is the critic's loss. This module imports no torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from burnish.algorithms.table import NOTHING, AlgorithmTable, Entry, Fn
from burnish.config.needs import Needs

if TYPE_CHECKING:
    import torch

    from burnish.algorithms.losses.inputs import PolicyLossInputs
    from burnish.algorithms.tally import Metrics

PolicyLoss: TypeAlias = "Callable[[PolicyLossInputs], tuple[torch.Tensor, Metrics]]"

TokenChoice: TypeAlias = "Callable[[PolicyLossInputs, torch.Generator], torch.Tensor]"

CLIPPED = Needs(ratio=True, skips_zero_advantage=True)
COMPARED = Needs(ratio=True)  # a row without advantage takes part in the comparison, or has its own penalty

TABLE = AlgorithmTable(
    key="actor_rollout_ref.actor.policy_loss.loss_mode",
    entries={
        "vanilla": Entry("burnish.algorithms.losses.vanilla:vanilla", CLIPPED),
        "gspo": Entry("burnish.algorithms.losses.gspo:gspo", CLIPPED),
        "geo_mean": Entry("burnish.algorithms.losses.geo_mean:geo_mean", CLIPPED),
        "cispo": Entry("burnish.algorithms.losses.cispo:cispo", CLIPPED),
        "sapo": Entry("burnish.algorithms.losses.sapo:sapo", CLIPPED),
        "dppo_tv": Entry("burnish.algorithms.losses.dppo:dppo_tv", CLIPPED),
        "dppo_kl": Entry("burnish.algorithms.losses.dppo:dppo_kl", CLIPPED),
        "clip_cov": Entry(
            "burnish.algorithms.losses.clip_cov:clip_cov", COMPARED, "burnish.algorithms.losses.clip_cov:choose"
        ),
        "kl_cov": Entry("burnish.algorithms.losses.kl_cov:kl_cov", COMPARED, "burnish.algorithms.losses.kl_cov:choose"),
        "dro": Entry("burnish.algorithms.losses.dro:dro"),
        "gpg": Entry("burnish.algorithms.losses.gpg:gpg", Needs(skips_zero_advantage=True)),
        "reinforce": Entry("burnish.algorithms.losses.reinforce:reinforce", Needs(skips_zero_advantage=True)),
    },
    elsewhere={
        "ppo": "PPO's loss is vanilla",
        "gmpo": "GMPO's loss is geo_mean",
        "dapo": "DAPO is vanilla with further keys, --config-name=recipes/dapo",
        **{name: f"it is an estimator: algorithm.adv_estimator={name}" for name in ("grpo", "rloo", "remax", "opo")},
    },
)


def policy_loss(name: str) -> PolicyLoss:
    """The function behind a name or an import path `my.module:function`."""
    return TABLE.load(name)


def needs_of(name: str) -> Needs:
    """What the run must provide for this loss."""
    return TABLE.needs_of(name)


def token_choice(name: str) -> "TokenChoice | None":
    """The function that picks tokens of a mini-batch for this loss; None for a loss that compares none."""
    return TABLE.load_choice(name)


def register_policy_loss(name: str, needs: Needs = NOTHING, choose: "TokenChoice | None" = None) -> Callable[[Fn], Fn]:
    """Decorator: makes a function a policy loss that the configuration can name."""
    return TABLE.register(name, needs, choose)
