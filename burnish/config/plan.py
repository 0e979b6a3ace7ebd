"""`burnish ppo --plan`: the arithmetic of a run, before anything is loaded; and what is chosen to fit the memory:
micro-batches, and whether activations are kept for the backward pass or computed again there.

Where `memory_bytes` is taken, it is the memory of the GPU; None: the run is on a CPU and has the memory of this
machine, which its processes share. Memory and micro-batches are those of one process; each pool is planned separately.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from burnish.config.engines import engine_spec
from burnish.config.key import read, write
from burnish.config.memory import (
    NOTHING,
    Memory,
    adapter_parameters,
    estimate_memory,
    gib,
    host_memory,
    memory_of_one,
    models_on,
    rollout_load,
)
from burnish.config.model import ModelConfig
from burnish.config.needs import Needs
from burnish.config.passes import (
    PLAIN_ELEMENTS,
    ModelFacts,
    is_recomputed,
    longest,
    passes_of,
    rows_at_a_time,
)
from burnish.config.placement import ALONE, ModelSplit, Pool, agent_processes, pool_of, pools_of, split_of
from burnish.config.ppo import ACTOR_MODEL, REWARD_MODEL, PPOConfig

USABLE = 0.9  # share of the memory that may be planned with
ENOUGH_TOKENS = 16384  # a pass with more tokens than this gains no speed


class PlanLine(NamedTuple):
    name: str
    value: str
    how: str


def plan_numbers(
    config: PPOConfig,
    rows: int | None,
    facts: Mapping[str, ModelFacts] | None,
    needs: Needs = NOTHING,
    memory_bytes: int | None = None,
) -> list[PlanLine]:
    """Everything that follows from the batch sizes; steps need `rows`, memory needs `facts`."""
    lines = _processes(config) + _step(config, needs) + _length(config, rows)
    if facts is not None:
        for pool in pools_of(config):
            lines += _memory(config, facts, needs, memory_bytes, pool)
    return lines


def plan_table(lines: list[PlanLine]) -> str:
    name, value = max(len(line.name) for line in lines), max(len(line.value) for line in lines)
    return "\n".join(f"{line.name:<{name}}  {line.value:>{value}}  {line.how}".rstrip() for line in lines)


def plan_micro_batch(
    config: PPOConfig,
    facts: Mapping[str, ModelFacts],
    memory_bytes: int,
    *,
    on_gpu: bool = False,
    pool: str | None = None,
) -> int:
    """Sequences per pass that fit next to what is always held; at least 1, and at most as many as gain speed."""
    for size in range(_most(config, pool), 1, -1):
        memory = estimate_memory(config, facts, size, memory_bytes=memory_bytes, on_gpu=on_gpu, pool=pool)
        if memory.always + memory.training <= memory_bytes * USABLE:  # the KV pool takes what is left
            return size
    return 1


def plan_micro_batches(
    config: PPOConfig, facts: Mapping[str, ModelFacts], memory_bytes: int | None = None
) -> list[str]:
    """Decide on activations where that is left to us, and on every micro-batch size that is null; returns notices.
    Activations are kept where passes of the size that gains speed fit with them, and else recomputed, in all models of
    a pool that are trained."""
    return [said for pool in pools_of(config) for said in _plan_pool(config, facts, memory_bytes, pool.name)]


def _plan_pool(config: PPOConfig, facts: Mapping[str, ModelFacts], memory_bytes: int | None, pool: str) -> list[str]:
    """The same for the models of one pool; sizes of passes that this run has none of are filled with the policy's."""
    room, on_gpu = room_of(config, memory_bytes), memory_bytes is not None
    counted = {one.size: one.is_used for one in passes_of(config) if one.budget is None}
    here = [one.size for one in passes_of(config) if one.budget is None and pool_of(config, one.model).name == pool]
    unset = [name for name in here if read(config, name) is None]
    trained = [key for key in config.models if key != REWARD_MODEL]
    on_pool = [key for key in models_on(config, pool) if key in trained]
    auto = [key for key in on_pool if config.models[key].enable_gradient_checkpointing == "auto"]
    for name in unset:
        write(config, name, _most(config, pool))
    notices = []
    if auto:
        models = [config.models[key] for key in auto]
        for model in models:
            model.enable_gradient_checkpointing = False
        memory = estimate_memory(config, facts, memory_bytes=room, on_gpu=on_gpu, pool=pool)
        said = _decide(models, memory.most("activations"), memory.always + memory.training, room, on_gpu)
        notices.append(said + _which(auto, len(trained)))
    if not auto or any(is_recomputed(config.models[key]) for key in auto):
        size = plan_micro_batch(config, facts, room, on_gpu=on_gpu, pool=pool)
        for name in unset:
            write(config, name, size)
    if reported := [name for name in unset if counted[name]]:
        planned = f"micro-batches of {read(config, reported[0])} sequences, planned for {gib(room)} of memory"
        notices.append(planned + _which(reported, sum(counted.values())))
    return notices


def room_of(config: PPOConfig, memory_bytes: int | None) -> int:
    """Bytes that one process has: those of its GPU, or its share of the machine."""
    return memory_bytes or host_memory() // sum(max(pool.on_nodes) for pool in pools_of(config))


def plan_activations(
    model: ModelConfig, facts: ModelFacts, tokens: int, memory_bytes: int | None = None, split: ModelSplit = ALONE
) -> list[str]:
    """The same decision for a run that trains this one model, in passes of so many tokens; returns notices."""
    if model.enable_gradient_checkpointing != "auto":
        return []
    room, on_gpu = memory_bytes or host_memory() // split.processes, memory_bytes is not None
    model.enable_gradient_checkpointing = False
    memory = memory_of_one(model, facts, tokens, on_gpu=on_gpu, split=split)
    return [_decide([model], memory.most("activations"), memory.peak, room, on_gpu)]


def _decide(models: list[ModelConfig], kept: int, needed: int, room: int, on_gpu: bool) -> str:
    """Whether these models keep their activations, which take `kept` bytes of `needed` in all; returns a notice."""
    offload = on_gpu and any(model.enable_activation_offload for model in models)
    recompute = offload or needed > room * USABLE
    for model in models:
        model.enable_gradient_checkpointing = recompute
    if offload:
        return "activations are recomputed: to host memory and back, inputs of layers are less to move"
    if recompute:
        return f"activations are recomputed: to keep them would take {gib(needed)} in all, of {gib(room)} of memory"
    return f"activations are kept, {gib(kept)} of {gib(room)} of memory"


def _most(config: PPOConfig, pool: str | None = None) -> int:
    """Sequences of a pass that gains all the speed there is, in one process or in those that share them."""
    model = ACTOR_MODEL if pool is None else models_on(config, pool)[0]
    split = split_of(config, model)
    per_update = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    return max(1, min(math.ceil(per_update / split.data), ENOUGH_TOKENS * split.ulysses // longest(config)))


def _which(names: list[str], count: int) -> str:
    """The names in brackets, where they are not all there are."""
    return "" if len(names) == count else f" ({', '.join(names)})"


def _processes(config: PPOConfig) -> list[PlanLine]:
    """How many processes there are, and how they share the policy; nothing for one on this machine."""
    if config.trainer.executor == "local":
        return []
    pools, agents, split = pools_of(config), agent_processes(config), split_of(config, ACTOR_MODEL)
    lines = [
        *(PlanLine(f"processes: {p.name}", f"{p.processes:,}", f"{p.where}: {', '.join(p.roles)}") for p in pools),
        PlanLine("processes for agent loops", f"{sum(agents):,}", "rollout.agent.num_workers, on CPUs"),
    ]
    if split.is_sharded:
        copies = split.processes // split.shards
        how = "fsdp_config.fsdp_size; processes that share one copy of the policy"
        lines.append(PlanLine("shards", f"{split.shards:,}", how + (f"; there are {copies} copies" * (copies > 1))))
    if split.ulysses > 1:
        how = "actor.ulysses_sequence_parallel_size; processes that share each sequence"
        lines.append(PlanLine("slices of a sequence", f"{split.ulysses:,}", how))
    return lines


def _step(config: PPOConfig, needs: Needs) -> list[PlanLine]:
    data, actor, n = config.data, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    sequences, mini = data.train_batch_size * n, actor.ppo_mini_batch_size * n
    minis, epochs, length = data.train_batch_size // actor.ppo_mini_batch_size, actor.ppo_epochs, longest(config)
    split, share = split_of(config, ACTOR_MODEL), list[PlanLine]()
    if split.is_sharded:
        whose = "process" if split.ulysses == 1 else f"{split.ulysses} processes"
        how = f"{mini} sequences over {split.data}, "
        how += "about as long in all" if config.trainer.balance_batch else "as many in each"
        share = [PlanLine(f"sequences per mini-batch and {whose}", f"{math.ceil(mini / split.data):,}", how)]
    lines = [
        PlanLine("prompts per step", f"{data.train_batch_size:,}", "data.train_batch_size"),
        *_sampling(config, needs),
        PlanLine("sequences per step", f"{sequences:,}", f"{data.train_batch_size} prompts × rollout.n={n}"),
        PlanLine("tokens per step, at most", f"{sequences * length:,}", f"{sequences} × {length} tokens"),
        PlanLine("mini-batches per step", f"{minis:,}", f"{data.train_batch_size} / ppo_mini_batch_size={mini // n}"),
        PlanLine("sequences per mini-batch", f"{mini:,}", f"{mini // n} prompts × {n}"),
        *share,
        _micro_batches(config, math.ceil(mini / split.data)),
        PlanLine("optimiser steps per step", f"{minis * epochs:,}", f"{minis} × ppo_epochs={epochs}"),
    ]
    if config.critic.enable:
        critic_minis = data.train_batch_size // config.critic.ppo_mini_batch_size
        how = f"{critic_minis} × critic.ppo_epochs={config.critic.ppo_epochs}"
        lines.append(PlanLine("critic optimiser steps per step", f"{critic_minis * config.critic.ppo_epochs:,}", how))
    if config.process_reward.enable:
        size = config.process_reward.mini_batch_size
        how = f"{data.train_batch_size} / process_reward.mini_batch_size={size}"
        lines.append(PlanLine("process reward optimiser steps per step", f"{data.train_batch_size // size:,}", how))
    return lines


def _sampling(config: PPOConfig, needs: Needs) -> list[PlanLine]:
    size, filters = config.data.gen_batch_size, config.algorithm.filter_groups
    lines = []
    if filters.enable:
        most = f", at most {filters.max_num_gen_batches}" if filters.max_num_gen_batches else ""
        how = f"data.gen_batch_size; as many rounds as it takes to fill the step{most}"
        lines.append(PlanLine("prompts per generation round", f"{size:,}", how))
    if needs.greedy_baseline:
        which = "generation round" if filters.enable else "step"
        how = f"one for each prompt, the baseline of {config.algorithm.adv_estimator}; not trained on"
        lines.append(PlanLine(f"greedy sequences per {which}", f"{size:,}", how))
    return lines


def _micro_batches(config: PPOConfig, mini: int) -> PlanLine:
    actor = config.actor_rollout_ref.actor
    if actor.use_dynamic_bsz:
        most = math.ceil(mini * longest(config) / actor.ppo_max_token_len_per_gpu)
        how = f"full length in passes of ppo_max_token_len_per_gpu={actor.ppo_max_token_len_per_gpu} tokens"
        return PlanLine("micro-batches per mini-batch, at most", f"{most:,}", how)
    size = actor.ppo_micro_batch_size_per_gpu
    if size is None:
        return PlanLine("micro-batches per mini-batch", "-", "planned from memory when the run starts")
    how = f"{mini} sequences / ppo_micro_batch_size_per_gpu={size}"
    return PlanLine("micro-batches per mini-batch", f"{math.ceil(mini / size):,}", how)


def _length(config: PPOConfig, rows: int | None) -> list[PlanLine]:
    trainer = config.trainer
    if trainer.total_training_steps:
        return [PlanLine("steps in total", f"{trainer.total_training_steps:,}", "trainer.total_training_steps")]
    if rows is None:
        return []
    steps = math.ceil(trainer.total_epochs * rows / config.data.train_batch_size)
    how = f"{trainer.total_epochs} × {rows} rows / {config.data.train_batch_size} prompts, rounded up"
    return [PlanLine("steps in total", f"{steps:,}", how)]


def _memory(
    config: PPOConfig, facts: Mapping[str, ModelFacts], needs: Needs, memory_bytes: int | None, pool: Pool
) -> list[PlanLine]:
    policy, room, on_gpu = facts[ACTOR_MODEL], room_of(config, memory_bytes), memory_bytes is not None
    memory = estimate_memory(config, facts, None, needs, room, on_gpu=on_gpu, pool=pool.name)
    model, split = config.actor_rollout_ref.model, split_of(config, ACTOR_MODEL)
    dtype = model.dtype.replace("auto", "float32")
    gradients = "in float32" if dtype == "float32" else f"in float32, and those of one pass in {dtype}"
    spread = ""
    if split.is_sharded:
        gradients, spread = "in float32, summed over processes", f"; 1/{split.shards} of them"
    at_a_time = PLAIN_ELEMENTS // policy.vocab if model.use_fused_kernels is False else rows_at_a_time(policy, on_gpu)
    adapter = adapter_parameters(model, policy)
    own, with_adapter = f"{policy.parameters:,} parameters", f" and {adapter:,} of the adapter" if adapter else ""
    count = f"{own}{with_adapter} in {dtype}"
    if split.is_sharded:
        count = f"{own} in {dtype}{with_adapter} in float32" if adapter else f"{own} in float32"
    trained, of_adapter = ("adapter", " of the adapter") if adapter else ("weights", "")
    gathered = "full weights of the layers in use, and buffers between them and the slices"
    start = "" if config.process_reward.model.has_lora else ", and its start"
    slices = " (its part of them)" if pool.processes > 1 else ""
    load = rollout_load(config, policy, needs, room, on_gpu)
    name, how = engine_spec(load.rollout.name).memory_line(load, memory.keeps_kv)
    table = [
        ("weights", memory.weights, f"{count}{spread}"),
        ("masters", memory.masters, f"the {trained} in float32, which the optimiser steps on"),
        ("Adam's moments", memory.moments, f"two per parameter{of_adapter}, in float32{spread}"),
        ("rollout replica", memory.replica, f"all weights in {dtype}, for the rollout engine of this process"),
        ("reference", memory.reference, f"a second copy, for the KL term{slices}"),
        ("critic", memory.critic, f"its own weights, masters and moments{slices}"),
        ("process reward model", memory.process_reward, f"its own weights, masters and moments{start}{slices}"),
        ("reward model", memory.reward_model, f"its weights; it is not trained{slices}"),
        ("from host memory", memory.most("brought"), "what is offloaded, while it is in use"),
        ("gathered", memory.most("gathered"), gathered),
        ("gradients", memory.most("gradients"), gradients),
        ("logits", memory.most("logits"), f"{policy.vocab:,} per token, of at most {at_a_time:,} tokens at a time"),
        ("activations", memory.most("activations"), _pass(config, memory)),
        (name, memory.kv_cache, how),
    ]
    which = f" of {pool.name}" if len(pools_of(config)) > 1 else ""
    lines = [PlanLine(f"memory{which}: {name}", gib(size), how) for name, size, how in table if size]
    how = f"{gib(memory.always)} throughout, plus {memory.largest.name}"
    how += ", in each process" if pool.processes > 1 else ""
    return [*lines, PlanLine(f"estimated peak memory{which}", gib(memory.peak), how)]


def _pass(config: PPOConfig, memory: Memory) -> str:
    one = max(memory.turns, key=lambda turn: turn.activations).source
    assert one is not None, "sampling and updates have no activations"
    model, tokens = config.models[one.model], one.tokens(config)
    length = longest(config)
    size = f"{tokens:,} tokens" if one.budget else f"{tokens // length:,} sequences of {length} tokens"
    if not one.trains:
        return f"{size}, one layer at a time"
    how = "recomputed, all but the inputs of layers" if is_recomputed(model) else "kept for the backward pass"
    return f"{size}, {how}"
