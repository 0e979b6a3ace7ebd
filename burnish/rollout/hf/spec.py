"""The hf engine: keys that it ignores. It keeps keys and values of the sequences that run, and nothing else."""

from burnish.config.engines import FREES, EngineSpec

SPEC = EngineSpec(
    name="hf",
    path="burnish.rollout.hf.engine:HFEngine",
    label="the hf rollout engine",
    ignores=(
        (
            "the hf engine keeps no KV pool",
            "gpu_memory_utilization",
            "enable_chunked_prefill",
            "enable_prefix_caching",
            FREES,
        ),
        ("the hf engine uses no CUDA graphs", "enforce_eager"),
    ),
)
