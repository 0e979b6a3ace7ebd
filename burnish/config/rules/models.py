"""The models of a run: critic and process reward model where the estimator needs them, LoRA adapters, and keys of host
memory that move nothing. What depends on the number of processes is in `cluster.py`."""

import importlib.util
from typing import Any

from burnish.config.key import keys_of, read
from burnish.config.model import ModelConfig
from burnish.config.ppo import PPOConfig
from burnish.config.rules import Given, fill, run
from burnish.config.rules.batch import check_divides
from burnish.errors import ConfigError, install_command

OF_AN_ADAPTER = ("lora_alpha", "target_modules", "exclude_modules")
OFFLOADS = ("param_offload", "optimizer_offload", "offload_policy", "enable_activation_offload")


def critic(config: PPOConfig, given: Given) -> None:
    section, estimator = config.critic, config.algorithm.adv_estimator
    if given.needs.critic and section.enable is False:
        raise ConfigError(f"critic.enable=false: algorithm.adv_estimator={estimator} needs a critic; leave it out")
    section.enable = given.needs.critic
    fill(section.model, path=config.actor_rollout_ref.model.path)
    if section.enable:
        return
    given.unused(f"algorithm.adv_estimator={estimator} has no critic", *given.below("critic"))
    if config.trainer.critic_warmup:
        raise ConfigError(
            f"trainer.critic_warmup={config.trainer.critic_warmup}: algorithm.adv_estimator={estimator} has no critic, "
            "so these steps would train nothing; leave it out"
        )


def process_reward(config: PPOConfig, given: Given) -> None:
    """Switch the model on or off and fill what it leaves open from the actor. Runs after the batch sizes are known."""
    section, policy, estimator = config.process_reward, config.actor_rollout_ref, config.algorithm.adv_estimator
    if given.needs.process_reward and section.enable is False:
        why = f"algorithm.adv_estimator={estimator} needs a process reward model"
        raise ConfigError(f"process_reward.enable=false: {why}; leave it out")
    section.enable = given.needs.process_reward
    if estimator == "prime" and not (config.algorithm.reward_gt_coef or config.algorithm.reward_dpo_coef):
        raise ConfigError(
            "algorithm.reward_gt_coef=0 with algorithm.reward_dpo_coef=0: every advantage would be 0; give the outcome "
            "or the process rewards a weight"
        )
    fill(section, mini_batch_size=policy.actor.ppo_mini_batch_size, use_dynamic_bsz=policy.actor.use_dynamic_bsz)
    fill(section, max_token_len_per_gpu=policy.actor.ppo_max_token_len_per_gpu)
    if section.model.path is None:
        section.model.path = policy.model.path
        section.model.tokenizer_path = section.model.tokenizer_path or policy.model.tokenizer_path
    run.optimiser(section.optim, "process_reward.optim")
    if not section.enable:
        reason = f"algorithm.adv_estimator={estimator} has no process reward model"
        given.unused(reason, *given.below("process_reward"))
        return
    check_divides(config.data.train_batch_size, "process_reward.mini_batch_size", section.mini_batch_size, given)
    if section.use_dynamic_bsz and section.micro_batch_size_per_gpu is not None:
        given.cut_by_tokens("process_reward.micro_batch_size_per_gpu", "max_token_len_per_gpu")


def lora(model: ModelConfig, section: str, given: Given, *, trains: bool = True) -> None:
    """Check the adapter of the model at the key `section`; where nothing trains, it must be one that was trained."""
    keys = [f"{section}.{name}" for name in OF_AN_ADAPTER]
    if not model.has_lora:
        given.unused(f"{section}.lora_rank is 0: all weights are trained", *keys)
        return
    if not trains and model.lora_adapter_path is None:
        raise ConfigError(
            f"{section}.lora_rank={model.lora_rank}: this model is not trained, and a new adapter changes nothing; "
            f"leave it out, or name a trained adapter in {section}.lora_adapter_path"
        )
    need_peft()
    if model.lora_adapter_path is not None:
        given.unused(f"{section}.lora_adapter_path has its own", *keys)


def need_peft() -> None:
    if importlib.util.find_spec("peft") is None:
        raise ConfigError(f"a LoRA adapter needs the package peft; install it with `{install_command('lora')}`")


def offload(config: PPOConfig, given: Given) -> None:
    """Report what is set and moves nothing. Runs after the KL terms are known."""
    reference, judge = "actor_rollout_ref.ref.fsdp_config", "reward_model.model"
    without_effect = {f"{reference}.optimizer_offload": "the reference is not trained"}
    if config.actor_rollout_ref.model.has_lora:
        without_effect[f"{reference}.param_offload"] = "with LoRA the reference is the actor with its adapter off"
    elif not config.reads_reference:
        without_effect[f"{reference}.param_offload"] = "no KL term reads the reference"
    if config.reward_model.enable:
        names = (f"{judge}.fsdp_config.optimizer_offload", f"{judge}.enable_activation_offload")
        without_effect |= dict.fromkeys(names, "the reward model is not trained")
    for reason in dict.fromkeys(without_effect.values()):
        given.no_effect(reason, *(n for n, why in without_effect.items() if why == reason and read(config, n)))


def without_gpu(config: Any) -> list[str]:
    """Notices for a device without its own memory: the keys of a finished configuration that are set for one."""
    names = [name for name in keys_of(type(config)) if name.rpartition(".")[2] in OFFLOADS and read(config, name)]
    return [f"no effect: {', '.join(names)} (a CPU computes in host memory)"] if names else []
