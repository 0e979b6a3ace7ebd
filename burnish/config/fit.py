"""Which keys make a run fit into the memory, with numbers: for `--plan` of a run that does not fit, and for one that
ran out of memory. Each change is tried on the plan; those that save nothing are left out."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from burnish.config.key import keys_of, read, write
from burnish.config.memory import NOTHING, Memory, MemoryPhase, estimate_memory, gib, host_memory, memory_of_one
from burnish.config.needs import Needs
from burnish.config.passes import ModelFacts, PlannedPass, is_recomputed, longest
from burnish.config.placement import ALONE, ModelSplit, pools_of
from burnish.config.plan import USABLE, room_of
from burnish.config.ppo import PPOConfig
from burnish.config.supervised import SupervisedConfig

SHORTER = 0.8  # of the peak that did not fit: what is aimed at after a run has run out of memory
SIZE, BUDGET = "micro_batch_size_per_gpu", "max_token_len_per_gpu"


class MemoryChange(NamedTuple):
    keys: dict[str, Any]
    peak: int  # with this change and those before it


def needed(memory: Memory) -> int:
    """Without keys and values, which take what is left."""
    return memory.always + memory.training


def largest_memory(
    config: PPOConfig, facts: Mapping[str, ModelFacts], needs: Needs, memory_bytes: int | None
) -> Memory:
    """Of the process that needs most."""
    room, on_gpu = room_of(config, memory_bytes), memory_bytes is not None
    pools = [estimate_memory(config, facts, None, needs, room, on_gpu=on_gpu, pool=p.name) for p in pools_of(config)]
    return max(pools, key=needed)


def memory_changes(
    config: PPOConfig, facts: Mapping[str, ModelFacts], needs: Needs, memory_bytes: int | None, target: int
) -> list[MemoryChange]:
    """Changes, one added to the other, until the estimated peak is at most `target`, or no more are known."""
    tried, found = copy.deepcopy(config), list[MemoryChange]()
    memory = largest_memory(tried, facts, needs, memory_bytes)
    smaller = dict[str, Any]()  # the passes, halved until it fits
    while needed(memory) > target and (change := _half_a_pass(tried, memory.largest_turn)):
        write(tried, *change)
        smaller |= [change]
        memory = largest_memory(tried, facts, needs, memory_bytes)
    if smaller:
        found.append(MemoryChange(smaller, needed(memory)))
    for keys in _switches(tried, on_gpu=memory_bytes is not None):
        if (before := needed(memory)) <= target:
            break
        old = {name: read(tried, name) for name in keys}
        for name, value in keys.items():
            write(tried, name, value)
        memory = largest_memory(tried, facts, needs, memory_bytes)
        if needed(memory) < before:
            found.append(MemoryChange(keys, needed(memory)))
        else:
            for name, value in old.items():
                write(tried, name, value)
    return found


def advice(
    config: PPOConfig,
    facts: Mapping[str, ModelFacts],
    memory_bytes: int | None,
    needs: Needs = NOTHING,
    *,
    ran_out: bool = False,
) -> str | None:
    """What is planned and what would make it fit; None where it fits by the plan and has not run out of memory."""
    room, memory = room_of(config, memory_bytes), largest_memory(config, facts, needs, memory_bytes)
    if not ran_out and needed(memory) <= room:
        return None
    target = min(int(room * USABLE), int(needed(memory) * SHORTER) if ran_out else room)
    changes = memory_changes(config, facts, needs, memory_bytes, target)
    return _in_words(memory, room, changes, target, "take LoRA (model.lora_rank), a smaller model or more GPUs")


def supervised_advice(
    config: SupervisedConfig,
    facts: ModelFacts,
    tokens: Callable[[SupervisedConfig], int],
    memory_bytes: int | None,
    *,
    ran_out: bool = False,
    split: ModelSplit = ALONE,
) -> str | None:
    """As `advice`, for `burnish sft` and `burnish rm`. `tokens`: of a pass at most, with such a configuration."""
    room = memory_bytes or host_memory() // split.processes
    tried, changes = copy.deepcopy(config), list[MemoryChange]()

    def memory_now() -> Memory:
        return memory_of_one(tried.model, facts, tokens(tried), on_gpu=memory_bytes is not None, split=split)

    memory = memory_now()
    if not ran_out and memory.peak <= room:
        return None
    target, peak = min(int(room * USABLE), int(memory.peak * SHORTER) if ran_out else room), memory.peak
    size = config.data.micro_batch_size_per_gpu or config.data.train_batch_size
    while peak > target and size > 1:
        size = tried.data.micro_batch_size_per_gpu = size // 2
        peak = memory_now().peak
    if peak < memory.peak:
        changes.append(MemoryChange({"data.micro_batch_size_per_gpu": size}, peak))
    if peak > target and not is_recomputed(tried.model):
        tried.model.enable_gradient_checkpointing = True
        changes.append(MemoryChange({"model.enable_gradient_checkpointing": True}, memory_now().peak))
    other = "take shorter examples (data.max_length), LoRA (model.lora_rank), a smaller model or a larger GPU"
    return _in_words(memory, room, changes, target, other)


def _in_words(memory: Memory, room: int, changes: list[MemoryChange], target: int, other: str) -> str:
    planned = f"planned are {gib(needed(memory))} of {gib(room)}: {gib(memory.always)} throughout, plus "
    planned += f"{memory.largest_turn.name}"
    lines = [f"  {_typed(change.keys)}  → {gib(change.peak)}" for change in changes]
    if not changes:
        return f"{planned}. No key is known that needs less; {other}"
    if changes[-1].peak <= target:
        return "\n".join([f"{planned}. It should fit with these keys, each added to those above it:", *lines])
    return "\n".join([f"{planned}. These keys need less, each added to those above it, but too much: {other}", *lines])


def _half_a_pass(config: PPOConfig, turn: MemoryPhase) -> tuple[str, int] | None:
    """The key of this pass with half of what it holds; None where it is one sequence, or no pass."""
    one = turn.source
    if one is None:
        return None
    if one.budget:
        now = min(one.budget, one.sequences * longest(config))
        half = max(now // 2, longest(config))
        return (_budget_key(one), half) if half < now else None
    size = min(read(config, one.size) or 1, one.sequences)
    return (one.size, size // 2) if size > 1 else None


def _budget_key(one: PlannedPass) -> str:
    prefix = one.size.removesuffix(SIZE)
    known = keys_of(PPOConfig)
    return next(name for name in (prefix + BUDGET, f"{prefix}forward_{BUDGET}") if name in known)


def _switches(config: PPOConfig, on_gpu: bool) -> Iterator[dict[str, Any]]:
    used = [key for key in config.models if key != "reward_model.model"]
    name = "enable_gradient_checkpointing"
    yield {f"{key}.{name}": True for key in used if config.models[key].enable_gradient_checkpointing is False}
    sections = ["actor_rollout_ref.actor", *(key.removesuffix(".model") for key in used[1:])]
    known = keys_of(PPOConfig)
    if on_gpu:
        wanted = [f"{section}.fsdp_config.optimizer_offload" for section in sections]
        wanted += ["actor_rollout_ref.ref.fsdp_config.param_offload"] * config.reads_reference
        yield {key: True for key in wanted if key in known and not read(config, key)}
    yield {"data.max_response_length": max(config.data.max_response_length // 2, 1)}


def _typed(keys: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in keys.items())
