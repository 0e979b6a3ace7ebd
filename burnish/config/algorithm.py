"""`algorithm.*`: the advantage estimator, the KL term in the reward, and what is done to a batch around them."""

from dataclasses import dataclass

from burnish.config.actor import FULL_KL, KL_KINDS
from burnish.config.key import Keys, key, section
from burnish.config.trainer import PPO

KL = "algorithms/kl.py"
FILTER = "trainer/filter.py"
CORRECTION, WEIGHTS = "trainer/credit.py", "algorithms/correction.py"
GAE, GRPO, GDPO, PRIME = (f"algorithms/advantages/{name}.py" for name in ("gae", "grpo", "gdpo", "prime"))
WEIGHT_LEVELS = ("token", "sequence")
ESTIMATORS = (  # the built-in ones, as algorithms/advantages lists them
    "gae", "grpo", "grpo_vectorized", "grpo_passk", "gdpo", "rloo", "rloo_vectorized", "reinforce_plus_plus",
    "reinforce_plus_plus_baseline", "remax", "opo", "gpg", "optimal_token_baseline", "tir_optimal_token_baseline",
    "prime",
)  # fmt: skip
USED_BY = {  # keys that only some of the built-in estimators read
    "algorithm.gamma": ("gae", "reinforce_plus_plus", "prime"),
    "algorithm.lam": ("gae",),
    "algorithm.norm_adv_by_std_in_grpo": ("grpo", "grpo_vectorized", "grpo_passk", "gdpo"),
    "algorithm.gdpo_reward_keys": ("gdpo",),
    "algorithm.gdpo_reward_weights": ("gdpo",),
    "algorithm.reward_gt_coef": ("prime",),
    "algorithm.reward_dpo_coef": ("prime",),
}


@dataclass
class KLControlConfig(Keys, reader=KL):
    """The coefficient of the KL penalty in the reward."""

    type: str = key("fixed", "a fixed coefficient, or one that follows target_kl", choices=("fixed", "adaptive"))
    kl_coef: float = key(0.001, "coefficient; with type=adaptive its initial value", low=0)
    target_kl: float = key(0.1, "KL that the adaptive coefficient aims at", above=0)
    horizon: int = key(10000, "number of sequences over which the coefficient adapts", low=1)


@dataclass
class FilterGroupsConfig(Keys, reader="trainer/experience.py"):
    """Dynamic sampling (DAPO): refill the batch until the scores in its groups differ."""

    enable: bool = key(False, "drop groups whose samples all have the same score, and draw others")
    metric: str = key("acc", "what must differ within a group: the score, or a value of the reward function", FILTER)
    max_num_gen_batches: int = key(0, "most generation rounds per step; 0: no limit", low=0)


@dataclass
class RolloutCorrectionConfig(Keys, reader="config/bounds.py"):
    """Weights and masks for the gap between the policy that sampled and the one that is trained."""

    mode: str = key(
        "measure",
        "measure the gap, correct it past a threshold (auto), always (on), or never (off)",
        CORRECTION,
        choices=("measure", "auto", "on", "off"),
        spellings={"true": "on", "false": "off"},  # as YAML reads on and off without quotes
    )
    gap_threshold: float = key(
        0.01, "mean k3 estimate of the KL per token that warns, or switches auto on", CORRECTION, above=0
    )
    rollout_is: str | None = key(None, "importance weights by token or by sequence", WEIGHTS, choices=WEIGHT_LEVELS)
    # Text, not numbers: Python, too, reads "3_2" as 32.
    rollout_is_threshold: str = key("2.0", "cap of a weight; as 0.5_2.0: weights outside become 0")
    rollout_is_batch_normalize: bool = key(False, "scale the weights to mean 1 over the batch", WEIGHTS)
    rollout_rs: str | list[str] | None = key(
        None, "rejection masks, as a list or joined by commas: token_k1, seq_mean_k3, seq_max_k2…"
    )
    rollout_rs_threshold: str | list[str] | None = key(
        None, "bounds of the masks: upper, or for k1 as 0.5_2.0; one for all, or one for each"
    )
    bypass_mode: bool = key(False, "use the rollout's log-probs as the old log-probs, which saves a forward pass", PPO)
    loss_type: str | None = key(
        None,
        "with bypass_mode: clip the ratio to the rollout policy, or weigh by it; null: as policy_loss.loss_mode",
        "config/rules/correction.py",
        choices=("ppo_clip", "reinforce"),
    )


@dataclass
class PFPPOConfig(Keys, reader="algorithms/resample.py"):
    """PF-PPO: draw the batch that is trained on from the one that was sampled, by its scores."""

    enable: bool = key(False, "PF-PPO: resample the batch by score before the update", PPO)
    reweight_method: str = key("pow", "weight of a sample by its score", choices=("pow", "max_min", "max_random"))
    weight_pow: float = key(2.0, "exponent of pow", above=0)


@dataclass
class OverlongBufferConfig(Keys, reader="algorithms/overlong.py"):
    """Soft overlong punishment (DAPO): a penalty that grows over the last tokens before the limit."""

    enable: bool = key(False, "penalise responses near the limit", "trainer/experience.py")
    len: int = key(0, "tokens over which the penalty grows", low=0)
    penalty_factor: float = key(1.0, "penalty at the limit", low=0)
    log: bool = key(False, "report the penalty", inert="a penalty is always reported, as overlong/…")


@dataclass
class StateMaskingConfig(Keys, reader="agents/loops/search.py"):
    """The tags around retrieved text."""

    start_state_marker: str = key("<information>", "tag that opens retrieved text")
    end_state_marker: str = key("</information>", "tag that closes it")


@dataclass
class AlgorithmConfig(Keys, reader="trainer/credit.py"):
    """From scores to advantages."""

    # Which names there are is the table's to say (algorithms/advantages): a user can add one.
    adv_estimator: str = key("gae", "advantage estimator, or an import path package.module:function")
    gamma: float = key(1.0, "discount per token", GAE, low=0, high=1)
    lam: float = key(1.0, "lambda of generalised advantage estimation", GAE, low=0, high=1)
    norm_adv_by_std_in_grpo: bool = key(True, "divide by the standard deviation of the group; false: Dr.GRPO", GRPO)
    gdpo_reward_keys: list[str] | None = key(
        None,
        "gdpo: values of the reward function that are normalised separately; null: of its functions, else the score",
    )
    gdpo_reward_weights: list[float] | None = key(
        None, "gdpo: a weight for each of them; null: that of the function, or 1", GDPO
    )
    reward_gt_coef: float = key(1.0, "prime: weight of the outcome reward", PRIME, low=0)
    reward_dpo_coef: float = key(1.0, "prime: weight of the implicit process reward", PRIME, low=0)
    use_kl_in_reward: bool = key(False, "subtract a KL penalty from the reward")
    kl_penalty: str = key("kl", "estimate of the KL in the reward", choices=KL_KINDS, refused=FULL_KL)
    kl_ctrl: KLControlConfig = section(KLControlConfig)
    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)
    pf_ppo: PFPPOConfig = section(PFPPOConfig)
    overlong_buffer: OverlongBufferConfig = section(OverlongBufferConfig)
    state_masking: StateMaskingConfig = section(StateMaskingConfig)
