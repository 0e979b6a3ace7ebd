"""`algorithm.*`: the advantage estimator, the KL term in the reward, and what is done to a batch around them."""

from dataclasses import dataclass

from burnish.config.actor import FULL_KL, KL_KINDS
from burnish.config.key import key, section

CREDIT = "trainer/credit.py"
KL = "algorithms/kl.py"
FILTER = "trainer/filter.py"
OVERLONG = "algorithms/overlong.py"
RESAMPLE = "algorithms/resample.py"
CORRECTION = "trainer/correction.py"
BOUNDS = "config/bounds.py"
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
class KLControlConfig:
    """The coefficient of the KL penalty in the reward."""

    type: str = key(
        "fixed", "a fixed coefficient, or one that follows target_kl", reader=KL, choices=("fixed", "adaptive")
    )
    kl_coef: float = key(0.001, "coefficient, or the first one", reader=KL, low=0)
    target_kl: float = key(0.1, "KL that the adaptive coefficient aims at", reader=KL, above=0)
    horizon: int = key(10000, "sequences over which it adapts", reader=KL, low=1)


@dataclass
class FilterGroupsConfig:
    """Dynamic sampling (DAPO): refill the batch until its groups have something to tell apart."""

    enable: bool = key(
        False, "drop groups whose samples are all alike, and draw others", reader="trainer/experience.py"
    )
    metric: str = key("acc", "what must differ in a group: score, or a figure of the reward function", reader=FILTER)
    max_num_gen_batches: int = key(
        0, "generation rounds per step at most; 0: no limit", reader="trainer/experience.py", low=0
    )


@dataclass
class RolloutCorrectionConfig:
    """Weights and masks for the gap between the policy that sampled and the one that is trained."""

    mode: str = key(
        "measure",
        "measure the gap, correct it past a threshold (auto), always (on), or never (off)",
        reader=CORRECTION,
        choices=("measure", "auto", "on", "off"),
        spellings={"true": "on", "false": "off"},  # as YAML reads on and off without quotes
    )
    gap_threshold: float = key(
        0.01, "mean k3 estimate of the KL per token that warns, or switches auto on", reader=CORRECTION, above=0
    )
    rollout_is: str | None = key(
        None,
        "importance weights by token or by sequence",
        reader="algorithms/correction/__init__.py",
        choices=WEIGHT_LEVELS,
    )
    # Text, not numbers: Python, too, reads "3_2" as 32.
    rollout_is_threshold: str = key("2.0", "cap of a weight; as 0.5_2.0: weights outside become 0", reader=BOUNDS)
    rollout_is_batch_normalize: bool = key(
        False, "weights with mean 1 over the batch", reader="algorithms/correction/__init__.py"
    )
    rollout_rs: str | list[str] | None = key(
        None, "rejection masks, as a list or joined by commas: token_k1, seq_mean_k3, seq_max_k2…", reader=BOUNDS
    )
    rollout_rs_threshold: str | list[str] | None = key(
        None, "bounds of the masks: upper, or for k1 as 0.5_2.0; one for all, or one for each", reader=BOUNDS
    )
    bypass_mode: bool = key(
        False, "take the rollout's log-probs as the old ones and save a pass", reader="trainer/ppo.py"
    )
    loss_type: str | None = key(
        None,
        "with bypass_mode: clip the ratio to the rollout policy, or weigh by it; null: as policy_loss.loss_mode",
        reader="config/rules/correction.py",
        choices=("ppo_clip", "reinforce"),
    )


@dataclass
class PFPPOConfig:
    """PF-PPO: draw the batch that is trained on from the one that was sampled, by its scores."""

    enable: bool = key(False, "resample before the update", reader="trainer/ppo.py")
    reweight_method: str = key(
        "pow", "weight of a sample by its score", reader=RESAMPLE, choices=("pow", "max_min", "max_random")
    )
    weight_pow: float = key(2.0, "exponent of pow", reader=RESAMPLE, above=0)


@dataclass
class OverlongBufferConfig:
    """Soft overlong punishment (DAPO): a penalty that grows over the last tokens before the limit."""

    enable: bool = key(False, "penalise responses near the limit", reader="trainer/experience.py")
    len: int = key(0, "tokens over which the penalty grows", reader=OVERLONG, low=0)
    penalty_factor: float = key(1.0, "penalty at the limit", reader=OVERLONG, low=0)


@dataclass
class StateMaskingConfig:
    """The tags around retrieved text."""

    start_state_marker: str = key("<information>", "tag that opens retrieved text", reader="agents/loops/search.py")
    end_state_marker: str = key("</information>", "tag that closes it", reader="agents/loops/search.py")


@dataclass
class AlgorithmConfig:
    """From scores to advantages."""

    # Which names there are is the table's to say (algorithms/advantages): a user can add one.
    adv_estimator: str = key("gae", "advantage estimator, or an import path package.module:function", reader=CREDIT)
    gamma: float = key(1.0, "discount per token", reader="algorithms/advantages/gae.py", low=0, high=1)
    lam: float = key(
        1.0, "lambda of generalised advantage estimation", reader="algorithms/advantages/gae.py", low=0, high=1
    )
    norm_adv_by_std_in_grpo: bool = key(
        True, "divide by the group's spread; false is Dr.GRPO", reader="algorithms/advantages/grpo.py"
    )
    gdpo_reward_keys: list[str] | None = key(
        None, "gdpo: figures of the reward function that are normalised one by one; null: the score", reader=CREDIT
    )
    gdpo_reward_weights: list[float] | None = key(
        None, "gdpo: a weight for each of them; null: 1", reader="algorithms/advantages/gdpo.py"
    )
    reward_gt_coef: float = key(
        1.0, "prime: weight of the outcome reward", reader="algorithms/advantages/prime.py", low=0
    )
    reward_dpo_coef: float = key(
        1.0, "prime: weight of the implicit process reward", reader="algorithms/advantages/prime.py", low=0
    )
    use_kl_in_reward: bool = key(False, "subtract a KL penalty from the reward", reader=CREDIT)
    kl_penalty: str = key("kl", "estimate of the KL in the reward", reader=CREDIT, choices=KL_KINDS, refused=FULL_KL)
    kl_ctrl: KLControlConfig = section(KLControlConfig)
    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig)
    rollout_correction: RolloutCorrectionConfig = section(RolloutCorrectionConfig)
    pf_ppo: PFPPOConfig = section(PFPPOConfig)
    overlong_buffer: OverlongBufferConfig = section(OverlongBufferConfig)
    state_masking: StateMaskingConfig = section(StateMaskingConfig)
