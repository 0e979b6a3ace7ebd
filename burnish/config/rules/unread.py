"""Numbers of the algorithm that its own switches leave unread: those of PF-PPO, and of the KL coefficient."""

from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given

PF_PPO, KL_CTRL = "algorithm.pf_ppo", "algorithm.kl_ctrl"


def unread(config: PPOConfig, given: Given) -> None:
    """Report keys of a part that is off, or of another kind. Runs after the KL terms are switched."""
    resampling, kl = config.algorithm.pf_ppo, config.algorithm.kl_ctrl
    if not resampling.enable:
        given.off(PF_PPO)
    elif resampling.reweight_method != "pow":
        reason = f"{PF_PPO}.reweight_method={resampling.reweight_method} has no exponent"
        given.unused(reason, f"{PF_PPO}.weight_pow")
    if config.algorithm.use_kl_in_reward and kl.type == "fixed":
        given.unused(f"{KL_CTRL}.type is fixed", f"{KL_CTRL}.target_kl", f"{KL_CTRL}.horizon")
