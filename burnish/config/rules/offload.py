"""Host memory: keys that move nothing in this run. What depends on the number of processes is in `cluster.py`."""

from typing import Any

from burnish.config.key import keys_of, read
from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given

REFERENCE = "actor_rollout_ref.ref.fsdp_config"
JUDGE = "reward_model.model"
OFFLOADS = ("param_offload", "optimizer_offload", "offload_policy", "enable_activation_offload")


def offload(config: PPOConfig, given: Given) -> None:
    """Report what is set and moves nothing. Runs after the KL terms are known."""
    if config.actor_rollout_ref.model.has_lora:
        whole = "with LoRA the reference is the actor with its adapter off"
        _report(config, given, whole, f"{REFERENCE}.param_offload")
    elif not config.reads_reference:
        _report(config, given, "no KL term reads the reference", f"{REFERENCE}.param_offload")
    _report(config, given, "the reference is not trained", f"{REFERENCE}.optimizer_offload")
    if config.reward_model.enable:
        names = f"{JUDGE}.fsdp_config.optimizer_offload", f"{JUDGE}.enable_activation_offload"
        _report(config, given, "the reward model is not trained", *names)


def without_gpu(config: Any) -> list[str]:
    """What to tell on a device without memory of its own: the keys of a finished configuration that are set for it."""
    names = [name for name in keys_of(type(config)) if name.rpartition(".")[2] in OFFLOADS and read(config, name)]
    return [f"no effect: {', '.join(names)} (a CPU computes in host memory)"] if names else []


def _report(config: PPOConfig, given: Given, reason: str, *names: str) -> None:
    if there := [name for name in names if read(config, name)]:
        given.say(f"no effect: {', '.join(there)} ({reason})")
