"""What a rollout engine takes: keys that only one reads, and attention that the native one can page."""

from burnish.config.model import ModelConfig
from burnish.config.rollout import BaseRolloutConfig, RolloutConfig
from burnish.config.rules.given import Given
from burnish.errors import ConfigError

PAGED = ("auto", "sdpa", "eager")
OF_THE_POOL = ("gpu_memory_utilization", "enable_chunked_prefill", "enable_prefix_caching")


def engine(rollout: BaseRolloutConfig, model: ModelConfig, section: str, given: Given) -> None:
    """Refuse attention that cannot be paged; report what was set in `section` for `native` where `hf` generates."""
    if rollout.name != "hf":
        _check_attention(model, section)
        return
    # Without training `free_cache_engine` has no effect under any engine, which is said already.
    pool = (*OF_THE_POOL, "free_cache_engine") if isinstance(rollout, RolloutConfig) else OF_THE_POOL
    for reason, names in (("keeps no KV pool", pool), ("uses no CUDA graphs", ("enforce_eager",))):
        if there := [f"{section}.{name}" for name in names if f"{section}.{name}" in given]:
            given.say(f"no effect: {', '.join(there)} (the hf engine {reason})")


def _check_attention(model: ModelConfig, section: str) -> None:
    if model.attn_implementation not in PAGED:
        key = section.removesuffix("rollout") + "model.attn_implementation"
        raise ConfigError(
            f"{key}={model.attn_implementation}: the native rollout engine generates with the trained module and pages "
            f"its attention, which it can for {', '.join(PAGED)}; choose one of them, or {section}.name=hf"
        )
