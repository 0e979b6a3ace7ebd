"""Keys that only one rollout engine reads."""

from burnish.config.rollout import BaseRolloutConfig, RolloutConfig
from burnish.config.rules.given import Given

OF_THE_POOL = ("gpu_memory_utilization", "enable_chunked_prefill", "enable_prefix_caching")


def engine(rollout: BaseRolloutConfig, section: str, given: Given) -> None:
    """Report what was set in `section` for the native engine where `hf` generates."""
    if rollout.name != "hf":
        return
    # Without training `free_cache_engine` has no effect under any engine, which is said already.
    pool = (*OF_THE_POOL, "free_cache_engine") if isinstance(rollout, RolloutConfig) else OF_THE_POOL
    for reason, names in (("keeps no KV pool", pool), ("uses no CUDA graphs", ("enforce_eager",))):
        if there := [f"{section}.{name}" for name in names if f"{section}.{name}" in given]:
            given.say(f"no effect: {', '.join(there)} (the hf engine {reason})")
