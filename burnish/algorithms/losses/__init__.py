"""Policy losses (`actor.policy_loss.loss_mode`): `PolicyLossInputs` in, the loss of a micro-batch and its metrics out.

A loss is one function in one short file; docs/extending.md shows one, with what its `needs` and `choose` mean. This
module imports no torch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from burnish.algorithms.table import AlgorithmTable, Entry
from burnish.config.needs import Needs

if TYPE_CHECKING:
    import torch

    from burnish.algorithms.losses.inputs import PolicyLossInputs
    from burnish.algorithms.tally import Metrics

PolicyLoss: TypeAlias = "Callable[[PolicyLossInputs], tuple[torch.Tensor, Metrics]]"

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


needs_of = TABLE.needs_of  # what the run must provide for a loss
policy_loss = TABLE.load  # the function behind a name or an import path `my.module:function`
token_choice = TABLE.load_choice  # a loss's `choose`; None for a loss that compares no tokens
register_policy_loss = TABLE.register  # decorator: makes a function a policy loss that the configuration can name
