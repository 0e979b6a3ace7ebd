"""`burnish ppo --plan`: the arithmetic of a run, before anything is loaded; and micro-batches that fit the memory.

Consumes a finalised configuration, the number of training rows, the models' sizes and what the algorithm needs; hands
on a list of (name, value, how it comes about) that `plan_table` aligns.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from burnish.config.key import read, write
from burnish.config.memory import (
    LOGITS_AT_A_TIME,
    NOTHING,
    Memory,
    ModelSizes,
    estimate_memory,
    gib,
    has_pool,
    host_memory,
    longest,
    sequences_at_a_time,
)
from burnish.config.needs import Needs
from burnish.config.ppo import ACTOR_MODEL, PPOConfig

USABLE = 0.9  # share of the memory that may be planned with
ENOUGH_TOKENS = 16384  # a pass with more tokens than this gains no speed


class PlanLine(NamedTuple):
    """One derived number."""

    name: str
    value: str
    how: str


def plan_numbers(
    config: PPOConfig,
    rows: int | None,
    facts: Mapping[str, ModelSizes] | None,
    needs: Needs = NOTHING,
    memory_bytes: int | None = None,
) -> list[PlanLine]:
    """Everything that follows from the batch sizes; steps need `rows`, memory needs `facts`.

    `memory_bytes` is the memory of the device; without it, that of this machine.
    """
    lines = _step(config, needs) + _length(config, rows)
    return lines if facts is None else lines + _memory(config, facts, needs, memory_bytes or host_memory())


def total_steps(config: PPOConfig, rows: int) -> int:
    """Training steps of the run: set, or as many as the epochs need."""
    steps = math.ceil(config.trainer.total_epochs * rows / config.data.train_batch_size)
    return config.trainer.total_training_steps or steps


def plan_table(
    config: PPOConfig,
    rows: int | None,
    facts: Mapping[str, ModelSizes] | None,
    needs: Needs = NOTHING,
    memory_bytes: int | None = None,
) -> str:
    """The plan as an aligned table."""
    lines = plan_numbers(config, rows, facts, needs, memory_bytes)
    name, value = max(len(line.name) for line in lines), max(len(line.value) for line in lines)
    return "\n".join(f"{line.name:<{name}}  {line.value:>{value}}  {line.how}".rstrip() for line in lines)


def plan_micro_batch(config: PPOConfig, facts: Mapping[str, ModelSizes], memory_bytes: int) -> int:
    """Sequences per pass that fit beside what is always there; at least 1, and no more than gains speed."""
    per_update = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    for size in range(min(per_update, ENOUGH_TOKENS // longest(config)), 1, -1):
        memory = estimate_memory(config, facts, size, memory_bytes=memory_bytes)
        if memory.always + memory.training <= memory_bytes * USABLE:
            return size
    return 1


def plan_micro_batches(
    config: PPOConfig, facts: Mapping[str, ModelSizes], memory_bytes: int | None = None
) -> list[str]:
    """Give every micro-batch size that was left null the planned one; returns a notice where there was any.

    `memory_bytes` is the memory of the device; without it, that of this machine.
    """
    memory_bytes = memory_bytes or host_memory()
    planned = plan_micro_batch(config, facts, memory_bytes)
    counted = _counted(config)
    unset = [name for name in counted if read(config, name) is None]
    for name in unset:
        write(config, name, planned)
    told = [name for name in unset if counted[name]]
    if not told:
        return []
    which = "" if len(told) == sum(counted.values()) else f" ({', '.join(told)})"
    return [f"micro-batches of {planned} sequences, planned for {gib(memory_bytes)} of memory{which}"]


def _counted(config: PPOConfig) -> dict[str, bool]:
    """The keys of passes that are cut by sequences, not by tokens, and whether this run has such passes."""
    policy, critic, process = config.actor_rollout_ref, config.critic, config.process_reward
    judge = config.reward_model
    reference = policy.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    places = [
        ("actor_rollout_ref.actor.ppo_", policy.actor.use_dynamic_bsz, True),
        ("actor_rollout_ref.rollout.log_prob_", policy.rollout.log_prob_use_dynamic_bsz, True),
        ("actor_rollout_ref.ref.log_prob_", policy.ref.log_prob_use_dynamic_bsz, reference),
        ("critic.ppo_", critic.use_dynamic_bsz, bool(critic.enable)),
        ("critic.forward_", critic.use_dynamic_bsz, bool(critic.enable)),
        ("process_reward.", process.use_dynamic_bsz, bool(process.enable)),
        ("reward_model.", judge.use_dynamic_bsz, judge.enable),
    ]
    return {f"{name}micro_batch_size_per_gpu": used for name, by_tokens, used in places if not by_tokens}


def _step(config: PPOConfig, needs: Needs) -> list[PlanLine]:
    data, actor, n = config.data, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout.n
    sequences, mini = data.train_batch_size * n, actor.ppo_mini_batch_size * n
    minis = data.train_batch_size // actor.ppo_mini_batch_size
    lines = [
        PlanLine("prompts per step", f"{data.train_batch_size:,}", "data.train_batch_size"),
        *_sampling(config, needs),
        PlanLine("sequences per step", f"{sequences:,}", f"{data.train_batch_size} prompts × rollout.n={n}"),
        PlanLine(
            "tokens per step, at most", f"{sequences * longest(config):,}", f"{sequences} × {longest(config)} tokens"
        ),
        PlanLine("mini-batches per step", f"{minis:,}", f"{data.train_batch_size} / ppo_mini_batch_size={mini // n}"),
        PlanLine("sequences per mini-batch", f"{mini:,}", f"{mini // n} prompts × {n}"),
        _micro_batches(config, mini),
        PlanLine(
            "optimiser steps per step", f"{minis * actor.ppo_epochs:,}", f"{minis} × ppo_epochs={actor.ppo_epochs}"
        ),
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
    """What is generated besides the sequences of the step."""
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
    how = f"{trainer.total_epochs} × {rows} rows / {config.data.train_batch_size} prompts, rounded up"
    return [PlanLine("steps in total", f"{total_steps(config, rows):,}", how)]


def _memory(config: PPOConfig, facts: Mapping[str, ModelSizes], needs: Needs, memory_bytes: int) -> list[PlanLine]:
    policy = facts[ACTOR_MODEL]
    micro = config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu or 1
    if config.actor_rollout_ref.actor.use_dynamic_bsz:
        micro = max(1, config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu // longest(config))
    memory = estimate_memory(config, facts, micro, needs, memory_bytes)
    dtype = config.actor_rollout_ref.model.dtype.replace("auto", "float32")
    pass_size = f"{micro} sequences of {longest(config)} tokens"
    gradients = f"in float32, and those of one pass in {dtype}" if memory.masters else "in float32"
    logits = f"{policy.vocab:,} per response token, at most {LOGITS_AT_A_TIME:,} at a time"
    table = [
        ("weights", memory.weights, f"{policy.parameters:,} parameters in {dtype}"),
        ("masters", memory.masters, "the weights in float32, which the optimiser steps on"),
        ("Adam's moments", memory.moments, "two per parameter, in float32"),
        ("reference", memory.reference, "a second copy, for the KL term"),
        ("critic", memory.critic, "weights, masters and moments of its own"),
        ("process reward model", memory.process_reward, "weights, masters and moments of its own, and its start"),
        ("reward model", memory.reward_model, "its weights; it is not trained"),
        ("gradients", memory.gradients, gradients),
        ("logits", memory.logits, logits),
        ("activations", memory.activations, pass_size),
        _kv(config, needs, memory, memory_bytes),
    ]
    lines = [PlanLine(f"memory: {name}", gib(size), how) for name, size, how in table if size]
    return [*lines, PlanLine("estimated peak memory", gib(memory.peak), _peak(memory))]


def _kv(config: PPOConfig, needs: Needs, memory: Memory, memory_bytes: int) -> tuple[str, int, str]:
    rollout = config.actor_rollout_ref.rollout
    if not has_pool(config):
        how = f"{sequences_at_a_time(config, needs)} sequences of {longest(config)} tokens"
        return "KV cache", memory.kv_cache, how
    how = f"rollout.max_num_seqs={rollout.max_num_seqs} sequences of {longest(config)} tokens"
    how += f", at most {rollout.gpu_memory_utilization:g} of {gib(memory_bytes)}"
    return "KV pool", memory.kv_cache, how + (", also while it trains" if memory.keeps_kv else "")


def _peak(memory: Memory) -> str:
    larger = "keys and values" if not memory.keeps_kv and memory.kv_cache > memory.training else "one training pass"
    return f"{gib(memory.always)} throughout, plus {larger}"
