"""`algorithm.*`: the advantage estimator and the KL term in the reward."""

from dataclasses import dataclass

from burnish.config.actor import FULL_KL, KL_KINDS
from burnish.config.key import key, section

CREDIT = "trainer/credit.py"
KL = "algorithms/kl.py"
USED_BY = {  # keys that only some of the built-in estimators read
    "algorithm.gamma": ("gae",),
    "algorithm.lam": ("gae",),
    "algorithm.norm_adv_by_std_in_grpo": ("grpo",),
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
    """Refill the batch until its groups have something to tell apart."""

    enable: bool = key(False, "drop groups whose samples all score the same")
    metric: str = key("acc", "figure that must differ within a group")
    max_num_gen_batches: int = key(0, "generation rounds per step at most; 0: no limit")


@dataclass
class RolloutCorrectionConfig:
    """Weights and masks for the gap between the policy that sampled and the one that is trained."""

    mode: str = key("measure", "measure, auto, on or off")
    rollout_is: str | None = key(None, "importance weights by token or sequence")
    rollout_is_threshold: float = key(2.0, "cap of a weight")
    rollout_is_batch_normalize: bool = key(False, "weights with mean 1 over the batch")
    rollout_rs: str | None = key(None, "rejection mask")
    rollout_rs_threshold: float | None = key(None, "upper bound of the mask")
    rollout_rs_threshold_lower: float | None = key(None, "lower bound of the mask")
    bypass_mode: bool = key(False, "take the rollout's log-probs as the old ones")


@dataclass
class PFPPOConfig:
    """Resample a batch by its rewards."""

    enable: bool = key(False, "resample before the update")
    reweight_method: str = key("pow", "weight of a sample by its reward")
    weight_pow: float = key(2.0, "exponent of pow")


@dataclass
class OverlongBufferConfig:
    """A penalty that grows over the last tokens before the limit."""

    enable: bool = key(False, "penalise responses near the limit")
    len: int = key(0, "tokens over which the penalty grows")
    penalty_factor: float = key(1.0, "penalty at the limit")


@dataclass
class StateMaskingConfig:
    """The tags around retrieved text."""

    start_state_marker: str = key("<information>", "tag that opens retrieved text")
    end_state_marker: str = key("</information>", "tag that closes it")


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
    use_kl_in_reward: bool = key(False, "subtract a KL penalty from the reward", reader=CREDIT)
    kl_penalty: str = key("kl", "estimate of the KL in the reward", reader=CREDIT, choices=KL_KINDS, refused=FULL_KL)
    kl_ctrl: KLControlConfig = section(KLControlConfig)
    filter_groups: FilterGroupsConfig = section(FilterGroupsConfig, later="dynamic sampling (filter_groups)")
    rollout_correction: RolloutCorrectionConfig = section(
        RolloutCorrectionConfig, later="corrections of the gap between rollout and training"
    )
    pf_ppo: PFPPOConfig = section(PFPPOConfig, later="PF-PPO resampling")
    overlong_buffer: OverlongBufferConfig = section(OverlongBufferConfig, later="the overlong penalty")
    state_masking: StateMaskingConfig = section(StateMaskingConfig, later="the search agent")
