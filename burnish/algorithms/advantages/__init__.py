"""Advantage estimators (`algorithm.adv_estimator`): an `AdvantageInputs` in, advantages and returns (B, R) out.

An estimator is one short function; docs/extending.md shows one. What it declares as `needs` is what the run
around it provides. This module imports no torch.
"""

from burnish.algorithms.table import AlgorithmTable, Entry
from burnish.config.needs import Needs

GROUPS = Needs(groups=True)
LOSS = "it is a policy loss: actor_rollout_ref.actor.policy_loss.loss_mode="

TABLE = AlgorithmTable(
    key="algorithm.adv_estimator",
    entries={
        "gae": Entry("burnish.algorithms.advantages.gae:gae", Needs(critic=True)),
        "grpo": Entry("burnish.algorithms.advantages.grpo:grpo", GROUPS),
        "grpo_vectorized": Entry("burnish.algorithms.advantages.grpo:grpo", GROUPS),  # it has no loop to begin with
        "grpo_passk": Entry("burnish.algorithms.advantages.grpo_passk:grpo_passk", GROUPS),
        "gdpo": Entry("burnish.algorithms.advantages.gdpo:gdpo", Needs(groups=True, reward_components=True)),
        "rloo": Entry("burnish.algorithms.advantages.rloo:rloo", GROUPS),
        "rloo_vectorized": Entry("burnish.algorithms.advantages.rloo:rloo", GROUPS),
        "reinforce_plus_plus": Entry("burnish.algorithms.advantages.reinforce_plus_plus:reinforce_plus_plus"),
        "reinforce_plus_plus_baseline": Entry(
            "burnish.algorithms.advantages.reinforce_plus_plus:reinforce_plus_plus_baseline", GROUPS
        ),
        "remax": Entry("burnish.algorithms.advantages.remax:remax", Needs(greedy_baseline=True)),
        "opo": Entry("burnish.algorithms.advantages.opo:opo", GROUPS),
        "gpg": Entry("burnish.algorithms.advantages.gpg:gpg", GROUPS),
        "optimal_token_baseline": Entry(
            "burnish.algorithms.advantages.optimal_token_baseline:optimal_token_baseline",
            Needs(groups=True, outputs=("sum_pi_squared",)),
        ),
        "tir_optimal_token_baseline": Entry(
            "burnish.algorithms.advantages.optimal_token_baseline:tir_optimal_token_baseline",
            Needs(groups=True, outputs=("sum_pi_squared",)),
        ),
        "prime": Entry("burnish.algorithms.advantages.prime:prime", Needs(groups=True, process_reward=True)),
    },
    elsewhere={
        "ppo": "PPO's estimator is gae",
        "dapo": "DAPO is grpo with further keys, --config-name=recipes/dapo",
        "dr_grpo": "Dr.GRPO is grpo with algorithm.norm_adv_by_std_in_grpo=false, --config-name=recipes/dr_grpo",
        "reinforce++": "it is written reinforce_plus_plus",
        "gmpo": f"{LOSS}geo_mean",
        **{name: LOSS + name for name in ("gspo", "geo_mean", "cispo", "sapo", "dppo_tv", "dppo_kl", "dro")},
    },
)


needs_of = TABLE.needs_of  # what the run must provide for an estimator
estimator = TABLE.load  # the function behind a name or an import path `my.module:function`
register_adv_est = TABLE.register  # decorator: makes a function an estimator that the configuration can name
