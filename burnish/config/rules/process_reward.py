"""The process reward model: there where the estimator needs one, and reported as unused where it does not."""

from burnish.config.ppo import PPOConfig
from burnish.config.rules import run
from burnish.config.rules.batch import check_divides
from burnish.config.rules.given import Given
from burnish.errors import ConfigError

FROM_ACTOR = {  # key of the process reward model → key of the actor that it follows where it is null
    "mini_batch_size": "ppo_mini_batch_size",
    "use_dynamic_bsz": "use_dynamic_bsz",
    "max_token_len_per_gpu": "ppo_max_token_len_per_gpu",
}


def process_reward(config: PPOConfig, given: Given) -> None:
    """Switch the model on or off and fill what it leaves open from the actor. Runs after the batch sizes are known."""
    section, policy, estimator = config.process_reward, config.actor_rollout_ref, config.algorithm.adv_estimator
    if given.needs.process_reward and section.enable is False:
        raise ConfigError(
            f"process_reward.enable=false: algorithm.adv_estimator={estimator} needs a process reward model; "
            "leave it out"
        )
    section.enable = given.needs.process_reward
    if estimator == "prime" and not (config.algorithm.reward_gt_coef or config.algorithm.reward_dpo_coef):
        raise ConfigError(
            "algorithm.reward_gt_coef=0 with algorithm.reward_dpo_coef=0: every advantage would be 0; give the outcome "
            "or the process rewards a weight"
        )
    for name, followed in FROM_ACTOR.items():
        if getattr(section, name) is None:
            setattr(section, name, getattr(policy.actor, followed))
    if section.model.path is None:
        section.model.path = policy.model.path
        section.model.tokenizer_path = section.model.tokenizer_path or policy.model.tokenizer_path
    run.optimiser(section.optim, "process_reward.optim")
    if section.enable:
        check_divides(config.data.train_batch_size, "process_reward.mini_batch_size", section.mini_batch_size, given)
        if section.use_dynamic_bsz and section.micro_batch_size_per_gpu is not None:
            given.say(
                "no effect: process_reward.micro_batch_size_per_gpu (use_dynamic_bsz cuts micro-batches by tokens, "
                "max_token_len_per_gpu)"
            )
    else:
        reason = f"algorithm.adv_estimator={estimator} has no process reward model"
        given.unused(reason, *given.below("process_reward"))
