"""How much memory a run needs on one device, estimated from the models' sizes before anything is loaded.

In bytes, for P parameters in a type of w bytes; libraries' buffers and fragmentation are left out:

    always     weights w·P; where w is not 4, float32 masters 4·P; Adam's moments 8·P; for critic and process reward
               model too, with the latter's start, w·P; reference and reward model, w·P each. With LoRA, masters,
               moments and gradients are the adapter's, and reference and start are the base, which is there already
    training   gradients in float32 4·P and, where w is not 4, those of one pass w·P; logits and activations (passes.py)
    sampling   keys and values and, of an engine with its own weights, these: `memory` in `rollout/<name>/spec.py`

Of s processes that share a model by FSDP2 each has 1/s of what is trained, in float32, itself the master, and of the
rest in w; in a pass, gathered, the weights of two layers (three with `forward_prefetch`, all without resharding) and of
what is outside the layers, with a layer's gradients; and a whole replica for the rollout engine, w·P, which one
process that runs ahead has too. Roles on different pools never share a device.
All but the first take turns, and so do the models: the peak is what is always there plus the largest turn. What is
offloaded is there only in the turns that use it. Sizes come in by the key of the model, as `PPOConfig.models` has them.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from burnish.config.engines import RolloutLoad, engine_spec
from burnish.config.fsdp import FSDPConfig
from burnish.config.model import ModelConfig
from burnish.config.needs import Needs
from burnish.config.passes import (
    BYTES,
    FLOAT32,
    REFERENCE_PASS,
    ModelFacts,
    PlannedPass,
    activations,
    is_fused,
    logits,
    longest,
    passes_of,
)
from burnish.config.placement import ALONE, ModelSplit, fsdp_of, pool_of, split_of
from burnish.config.ppo import ACTOR_MODEL, CRITIC_MODEL, PROCESS_REWARD_MODEL, REWARD_MODEL, PPOConfig

NOTHING = Needs()
LAYERS_GATHERED = 2  # of a sharded model: the one in use and the next
OF = {CRITIC_MODEL: "the critic", PROCESS_REWARD_MODEL: "the process reward model", REWARD_MODEL: "the reward model"}


@dataclass(frozen=True)
class MemoryPhase:
    """Bytes held temporarily. `brought` is kept in host memory at other times."""

    name: str
    source: PlannedPass | None = None
    brought: int = 0
    gathered: int = 0
    gradients: int = 0
    logits: int = 0
    activations: int = 0
    kv_cache: int = 0

    @property
    def total(self) -> int:
        return self.brought + self.gathered + self.gradients + self.logits + self.activations + self.kv_cache


@dataclass(frozen=True)
class ModelMemory:
    """Bytes of one model in one process: its weights; masters and moments of what is trained of it; the gradients."""

    weights: int
    masters: int
    moments: int
    summed: int  # gradients in float32
    gradients: int  # including those of one pass

    @classmethod
    def of(
        cls, model: ModelConfig, facts: ModelFacts, *, trains: bool = True, split: ModelSplit = ALONE
    ) -> "ModelMemory":
        width, adapter = BYTES[model.dtype], adapter_parameters(model, facts)
        count = (adapter or facts.parameters) if trains else 0
        if split.is_sharded:  # slices of what is trained are float32, and the masters themselves
            part = -(-count // split.shards) * FLOAT32
            rest = -(-(facts.parameters + adapter - count) // split.shards) * width
            return cls(part + rest, masters=0, moments=2 * part, summed=part, gradients=part)
        own = width == FLOAT32  # a float32 parameter is its own master, and autograd sums up its gradient
        return cls(
            weights=(facts.parameters + adapter) * width,
            masters=0 if own else count * FLOAT32,
            moments=count * 2 * FLOAT32,
            summed=count * FLOAT32,
            gradients=count * (FLOAT32 if own else FLOAT32 + width),
        )

    @property
    def state(self) -> int:
        """What only an update reads."""
        return self.masters + self.moments


NO_MODEL = ModelMemory(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class OffloadedMemory:
    """Bytes kept in host memory between uses: weights and update state by model, and the reference."""

    weights: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, int] = field(default_factory=dict)
    reference: int = 0

    @classmethod
    def of(cls, config: PPOConfig, held: Mapping[str, ModelMemory], reference: int) -> "OffloadedMemory":
        ref = config.actor_rollout_ref.ref.fsdp_config
        keys = {key: fsdp_of(config, key) for key in held}
        return cls(
            {key: held[key].weights for key, fsdp in keys.items() if fsdp.param_offload or fsdp.offload_policy},
            {key: held[key].state for key, fsdp in keys.items() if fsdp.optimizer_offload or fsdp.offload_policy},
            reference if ref.param_offload or ref.offload_policy else 0,
        )

    def of_model(self, key: str) -> int:
        return self.weights.get(key, 0) + self.state.get(key, 0)


@dataclass(frozen=True)
class Memory:
    """Bytes of one process, by what they hold: what is there throughout, and the turns."""

    weights: int
    masters: int
    moments: int
    reference: int
    critic: int
    process_reward: int
    reward_model: int
    kv_cache: int
    keeps_kv: bool  # also while it trains
    turns: tuple[MemoryPhase, ...]
    replica: int = 0  # the rollout engine's own weights

    @property
    def always(self) -> int:
        policy = self.weights + self.masters + self.moments + self.reference + self.replica
        return policy + self.critic + self.process_reward + self.reward_model + self.keeps_kv * self.kv_cache

    def most(self, part: str) -> int:
        """Of gradients, logits, activations, `brought` or `gathered`: those of the turn that has most."""
        return max(getattr(turn, part) for turn in self.turns)

    @property
    def largest_turn(self) -> MemoryPhase:
        """Of those but sampling."""
        return max((turn for turn in self.turns if not turn.kv_cache), key=lambda turn: turn.total)

    @property
    def training(self) -> int:
        """What the largest turn but sampling adds."""
        return self.largest_turn.total

    @property
    def largest(self) -> MemoryPhase:
        return max(self.turns, key=lambda turn: turn.total)

    @property
    def peak(self) -> int:
        return self.always + self.largest.total


def estimate_memory(
    config: PPOConfig,
    facts: Mapping[str, ModelFacts],
    micro_batch: int | None = None,
    needs: Needs = NOTHING,
    memory_bytes: int | None = None,
    *,
    on_gpu: bool = False,
    pool: str | None = None,
) -> Memory:
    """The memory of a process whose passes, but for those cut by tokens, hold `micro_batch` sequences of full length.
    With `micro_batch` None each holds what its own key says. `memory_bytes` is the memory of the device, of which the
    KV pool takes a share at most; None: not known. `pool` names the pool of the process; None: the policy's."""
    policy = config.actor_rollout_ref
    sizes = {key: facts.get(key, facts[ACTOR_MODEL]) for key in config.models}  # the policy's where there are none
    here = models_on(config, pool or pool_of(config, ACTOR_MODEL).name)

    def holding(key: str, trains: bool) -> ModelMemory:
        return ModelMemory.of(config.models[key], sizes[key], trains=trains, split=split_of(config, key))

    held = {key: holding(key, key != REWARD_MODEL) for key in here}
    frozen = {key: holding(key, trains=False).weights for key in here}
    actor = held.get(ACTOR_MODEL, NO_MODEL)
    start = 0 if config.process_reward.model.has_lora else frozen.get(PROCESS_REWARD_MODEL, 0)
    has_reference = config.reads_reference and not policy.model.has_lora
    reference = frozen.get(ACTOR_MODEL, 0) if has_reference else 0
    away = OffloadedMemory.of(config, held, reference) if on_gpu else OffloadedMemory()
    engine = engine_spec(policy.rollout.name)
    load = rollout_load(config, sizes[ACTOR_MODEL], needs, memory_bytes, on_gpu)
    kv = engine.memory(load) if ACTOR_MODEL in here else 0
    frees = policy.rollout.free_cache_engine and ("cuda" if on_gpu else "cpu") in engine.frees_memory
    keeps_kv = engine.has_pool and not frees
    shares = not split_of(config, ACTOR_MODEL).is_sharded and not config.staleness
    turns = [*_passes(config, sizes, held, away, micro_batch, on_gpu), *_updates(config, held, away, on_gpu)]
    there = {key: one.weights + one.state - away.of_model(key) for key, one in held.items()}
    return Memory(
        weights=0 if away.weights.get(ACTOR_MODEL) else actor.weights,
        masters=0 if away.state.get(ACTOR_MODEL) else actor.masters,
        moments=0 if away.state.get(ACTOR_MODEL) else actor.moments,
        reference=reference - away.reference,
        critic=there.get(CRITIC_MODEL, 0),
        process_reward=there.get(PROCESS_REWARD_MODEL, 0) + start,
        reward_model=there.get(REWARD_MODEL, 0),
        kv_cache=kv,
        keeps_kv=keeps_kv,
        turns=(*turns, *(() if keeps_kv or not kv else (MemoryPhase("keys and values", kv_cache=kv),))),
        replica=load.weights if ACTOR_MODEL in here and not shares and not engine.own_weights else 0,
    )


def memory_of_one(
    model: ModelConfig, facts: ModelFacts, tokens: int, *, on_gpu: bool = False, split: ModelSplit = ALONE
) -> Memory:
    """The memory of a process of a run that trains this one model in passes of so many tokens. An output layer over the
    vocabulary is counted, also where the model is none of language."""
    held = ModelMemory.of(model, facts, split=split)
    turn = MemoryPhase(
        "one training pass",
        gathered=_gathered(model, facts, FSDPConfig(), trains=True) if split.is_sharded else 0,
        gradients=held.gradients,
        logits=logits(model, facts, tokens, trains=True, on_gpu=on_gpu),
        activations=activations(model, facts, tokens, trains=True, on_gpu=on_gpu),
    )
    others = dict.fromkeys(("reference", "critic", "process_reward", "reward_model", "kv_cache"), 0)
    return Memory(held.weights, held.masters, held.moments, **others, keeps_kv=False, turns=(turn,))


def models_on(config: PPOConfig, pool: str) -> list[str]:
    """The keys of the models that a pool holds, in the order of `PPOConfig.models`."""
    return [key for key in config.models if pool_of(config, key).name == pool]


def adapter_parameters(model: ModelConfig, facts: ModelFacts) -> int:
    """Parameters of the LoRA adapter, 0 without one; a layer of an unknown name counts as one of the feed-forward."""
    hidden, query, kv = facts.hidden, facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    both_sides = dict.fromkeys(("q_proj", "o_proj"), hidden + query) | dict.fromkeys(("k_proj", "v_proj"), hidden + kv)
    both_sides |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + facts.intermediate)
    ends = {name.rpartition(".")[2] for name in model.target_modules}
    targets = set(both_sides) if "all-linear" in ends else ends
    targets -= {name.rpartition(".")[2] for name in model.exclude_modules or ()}
    return model.lora_rank * facts.layers * sum(both_sides.get(name, hidden + facts.intermediate) for name in targets)


def host_memory() -> int:
    """Memory of this machine in bytes, or what a container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdigit() else total


def rollout_load(
    config: PPOConfig, facts: ModelFacts, needs: Needs, memory_bytes: int | None, on_gpu: bool
) -> RolloutLoad:
    policy, rollout = config.actor_rollout_ref, config.actor_rollout_ref.rollout
    processes = pool_of(config, ACTOR_MODEL).processes
    at_a_round = config.data.gen_batch_size * (rollout.n + needs.greedy_baseline)  # samples and greedy rows
    width = BYTES[policy.model.dtype if rollout.dtype == "auto" else rollout.dtype]
    return RolloutLoad(
        rollout,
        token_bytes=2 * facts.layers * facts.kv_heads * facts.head_dim * width,
        weights=(facts.parameters + adapter_parameters(policy.model, facts)) * width,
        longest=longest(config),
        sequences=min(rollout.max_num_seqs, math.ceil(at_a_round / processes)),
        context=rollout.max_model_len or facts.context or longest(config),
        processes=processes,
        memory_bytes=memory_bytes,
        on_gpu=on_gpu,
    )


def gib(count: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _passes(
    config: PPOConfig,
    sizes: Mapping[str, ModelFacts],
    held: Mapping[str, ModelMemory],
    away: OffloadedMemory,
    micro_batch: int | None,
    on_gpu: bool,
) -> Iterator[MemoryPhase]:
    for one in passes_of(config):
        if one.is_used and one.model in held:
            model, facts, tokens = config.models[one.model], sizes[one.model], one.tokens(config, micro_batch)
            split, is_reference = split_of(config, one.model), one.size.startswith(REFERENCE_PASS)
            fsdp = config.actor_rollout_ref.ref.fsdp_config if is_reference else fsdp_of(config, one.model)
            at_host = on_gpu and fsdp.offload_policy  # FSDP2 brings what it gathers, and takes gradients back
            gives_log_probs = one.model in (ACTOR_MODEL, PROCESS_REWARD_MODEL)  # others give one number per token
            whose = "the reference" if is_reference else OF.get(one.model, "the policy")
            of_which = f" of {whose}" if one.model in OF else ""
            yield MemoryPhase(
                f"one training pass{of_which}" if one.trains else f"one pass of {whose}",
                one,
                brought=0 if at_host else away.reference if is_reference else away.weights.get(one.model, 0),
                gathered=_gathered(model, facts, fsdp, trains=one.trains) if split.is_sharded else 0,
                gradients=held[one.model].gradients if one.trains and not at_host else 0,
                logits=logits(model, facts, tokens, trains=one.trains, on_gpu=on_gpu) if gives_log_probs else 0,
                activations=activations(model, facts, tokens, trains=one.trains, on_gpu=on_gpu),
            )


def _gathered(model: ModelConfig, facts: ModelFacts, fsdp: FSDPConfig, *, trains: bool) -> int:
    """Bytes of whole weights, and of whole gradients, that a pass through a sharded model has at a time."""
    width, attention = BYTES[model.dtype], facts.hidden * facts.head_dim * 2 * (facts.heads + facts.kv_heads)
    layer = min(attention + 3 * facts.hidden * facts.intermediate, facts.parameters // facts.layers)
    outside = facts.parameters - facts.layers * layer  # embeddings and output layer, whole from beginning to end
    keeps_all = trains and not fsdp.reshard_after_forward
    layers = facts.layers if keeps_all else min(facts.layers, LAYERS_GATHERED + fsdp.forward_prefetch)
    gradients = (outside + layer) * (width + FLOAT32) if trains and not model.has_lora else 0
    copied = 2 * facts.hidden * facts.intermediate if is_fused(model, facts) else 0  # gate and up, for their product
    return (outside + layers * layer + copied) * width + gradients


def _updates(
    config: PPOConfig, held: Mapping[str, ModelMemory], away: OffloadedMemory, on_gpu: bool
) -> Iterator[MemoryPhase]:
    """What the optimiser's step of each trained model adds; FSDP2's own offload makes it in host memory."""
    for key, holding in held.items():
        if holding.summed and not (on_gpu and fsdp_of(config, key).offload_policy):
            name = "the optimiser's step" + (f" of {OF[key]}" if key in OF else "")
            yield MemoryPhase(name, brought=away.of_model(key), gradients=holding.summed)
