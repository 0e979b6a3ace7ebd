"""The native engine: what it takes, the memory of its KV pool, and what it can do."""

import math
from dataclasses import dataclass

from burnish.config.engines import EngineSpec, RolloutLoad
from burnish.config.memory import gib

BLOCK_SIZE = 16  # tokens of a block of the KV pool


@dataclass(frozen=True)
class NativeSpec(EngineSpec):
    """A pool with room for `max_num_seqs` sequences of full length, within its share of the device."""

    def memory(self, load: RolloutLoad) -> int:
        blocks = load.rollout.max_num_seqs * math.ceil(load.longest / BLOCK_SIZE) + 1
        whole = blocks * BLOCK_SIZE * load.token_bytes
        return whole if load.share is None else min(whole, load.share)

    def memory_line(self, load: RolloutLoad, keeps: bool) -> tuple[str, str]:
        assert load.memory_bytes is not None, "a plan knows the memory of the device"
        how = f"rollout.max_num_seqs={load.rollout.max_num_seqs} sequences of {load.longest} tokens"
        how += f", at most {load.rollout.gpu_memory_utilization:g} of {gib(load.memory_bytes)}"
        return "KV pool", how + (", also while it trains" if keeps else "")


SPEC = NativeSpec(
    name="native",
    path="burnish.rollout.native.engine:NativeEngine",
    label="the native rollout engine",
    in_flight_updates=True,
    own_kernels=True,
    has_pool=True,
    frees_memory=("cuda", "cpu"),
    attention=("auto", "sdpa", "eager"),  # those whose keys and values it can page
)
