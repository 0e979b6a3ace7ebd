"""How much memory a run needs on one device, estimated from the model's sizes before anything is loaded.

An estimate, not a promise: it counts what grows with the model and the batch, and leaves out what is small or varies
(buffers of libraries, fragmentation). In bytes, for P parameters in a type of w bytes, of each model its own:

    always     weights w·P; where w is not 4, float32 masters 4·P; Adam's moments 8·P; the same for a critic and for a
               process reward model, which keeps its start w·P beside it; and reference and reward model, w·P each.
               With LoRA, masters, moments and gradients are those of the adapter (and of a new head, which is left
               out), and reference and start are the base, which is there already
    training   gradients in float32 4·P and, where w is not 4, those of one pass w·P, before they are added up; the
               logits of a chunk of tokens and the activations of one pass (`passes.py`)
    update     gradients in float32
    figures    log-probs, values and scores: one layer at a time, and the logits of a chunk
    sampling   keys and values: the native engine's pool has room for `max_num_seqs` sequences of full length, within
               its share of the device; the hf engine keeps those of the sequences that run

All but the first take turns, and so do the models, so the peak is what is always there plus the largest turn. With
`free_cache_engine=false` the pool is always there. What is offloaded to host memory is not always there, but in the
turns that use it: masters and moments in the update, weights in every turn of their model. A CPU has no offload.

Sizes come in by the key of the model, as `PPOConfig.models` has them; a model without any has those of the policy.
"""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from burnish.config.model import ModelConfig
from burnish.config.needs import Needs
from burnish.config.passes import (
    BYTES,
    FLOAT32,
    REFERENCE_PASS,
    ModelSizes,
    Pass,
    activations,
    logits,
    longest,
    passes_of,
    sizes_of,
)
from burnish.config.ppo import ACTOR_MODEL, CRITIC_MODEL, PROCESS_REWARD_MODEL, REWARD_MODEL, PPOConfig

NOTHING = Needs()
KV_BLOCK = 16  # tokens; `block_size` in rollout/native/engine.py
OF = {CRITIC_MODEL: "the critic", PROCESS_REWARD_MODEL: "the process reward model", REWARD_MODEL: "the reward model"}


@dataclass(frozen=True)
class Turn:
    """Bytes that are there for a while. `brought` is what lies in host memory at other times."""

    name: str
    source: Pass | None = None
    brought: int = 0
    gradients: int = 0
    logits: int = 0
    activations: int = 0
    kv_cache: int = 0

    @property
    def total(self) -> int:
        return self.brought + self.gradients + self.logits + self.activations + self.kv_cache


@dataclass(frozen=True)
class Holding:
    """Bytes of one model: its weights; masters and moments of what is trained of it; and the gradients."""

    weights: int
    masters: int
    moments: int
    summed: int  # gradients in float32
    gradients: int  # and those of one pass beside them

    @classmethod
    def of(cls, model: ModelConfig, facts: ModelSizes, *, trains: bool = True) -> "Holding":
        width, adapter = BYTES[model.dtype], adapter_parameters(model, facts)
        count = (adapter or facts.parameters) if trains else 0
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


@dataclass(frozen=True)
class Away:
    """Bytes that lie in host memory between uses: weights and update state by model, and the reference."""

    weights: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, int] = field(default_factory=dict)
    reference: int = 0

    @classmethod
    def of(cls, config: PPOConfig, held: Mapping[str, Holding], reference: int) -> "Away":
        """As the keys say; `reference` is what the reference takes."""
        policy, critic, judge = config.actor_rollout_ref, config.critic, config.reward_model.model
        weights = {CRITIC_MODEL: critic.fsdp_config.param_offload, REWARD_MODEL: judge.fsdp_config.param_offload}
        state = {
            ACTOR_MODEL: policy.actor.fsdp_config.optimizer_offload,
            CRITIC_MODEL: critic.fsdp_config.optimizer_offload,
        }
        return cls(
            {key: held[key].weights for key, is_away in weights.items() if is_away and key in held},
            {key: held[key].state for key, is_away in state.items() if is_away and key in held},
            reference if policy.ref.fsdp_config.param_offload else 0,
        )

    def of_model(self, key: str) -> int:
        """All that is away of one model."""
        return self.weights.get(key, 0) + self.state.get(key, 0)


@dataclass(frozen=True)
class Memory:
    """Bytes by what they hold: what is there throughout, and the turns."""

    weights: int
    masters: int
    moments: int
    reference: int
    critic: int
    process_reward: int
    reward_model: int
    kv_cache: int
    keeps_kv: bool  # also while it trains
    turns: tuple[Turn, ...]

    @property
    def always(self) -> int:
        """What is there during the whole step."""
        policy = self.weights + self.masters + self.moments + self.reference
        return policy + self.critic + self.process_reward + self.reward_model + self.keeps_kv * self.kv_cache

    @property
    def gradients(self) -> int:
        """Of the model that has most; so are `logits`, `activations` and `brought`, each by itself."""
        return max(turn.gradients for turn in self.turns)

    @property
    def logits(self) -> int:
        return max(turn.logits for turn in self.turns)

    @property
    def activations(self) -> int:
        return max(turn.activations for turn in self.turns)

    @property
    def brought(self) -> int:
        return max(turn.brought for turn in self.turns)

    @property
    def training(self) -> int:
        """What the largest turn but sampling adds."""
        return max(turn.total for turn in self.turns if not turn.kv_cache)

    @property
    def largest(self) -> Turn:
        """The turn that the peak is in."""
        return max(self.turns, key=lambda turn: turn.total)

    @property
    def peak(self) -> int:
        """What is always there, plus the largest turn."""
        return self.always + self.largest.total


def estimate_memory(
    config: PPOConfig,
    facts: Mapping[str, ModelSizes],
    micro_batch: int | None = None,
    needs: Needs = NOTHING,
    memory_bytes: int | None = None,
    *,
    on_gpu: bool = False,
) -> Memory:
    """The memory of a run whose passes, but for those cut by tokens, hold `micro_batch` sequences of full length.

    With `micro_batch` None each holds what its own key says. `memory_bytes` is the memory of the device, of which the
    KV pool takes a share at most; None: not known.
    """
    policy, sizes = config.actor_rollout_ref, sizes_of(config, facts)
    held = {key: Holding.of(model, sizes[key], trains=key != REWARD_MODEL) for key, model in config.models.items()}
    actor, process = held[ACTOR_MODEL], held.get(PROCESS_REWARD_MODEL)
    start = process.weights if process and not config.process_reward.model.has_lora else 0
    reference = actor.weights if config.reads_reference and not policy.model.has_lora else 0
    away = Away.of(config, held, reference) if on_gpu else Away()
    kv = _kv_cache(config, sizes[ACTOR_MODEL], needs, memory_bytes)
    keeps_kv = has_pool(config) and not policy.rollout.free_cache_engine
    turns = [*_passes(config, sizes, held, away, micro_batch, on_gpu), *_updates(held, away)]
    there = {key: holding.weights + holding.state - away.of_model(key) for key, holding in held.items()}
    return Memory(
        weights=actor.weights,
        masters=0 if away.state.get(ACTOR_MODEL) else actor.masters,
        moments=0 if away.state.get(ACTOR_MODEL) else actor.moments,
        reference=reference - away.reference,
        critic=there.get(CRITIC_MODEL, 0),
        process_reward=there.get(PROCESS_REWARD_MODEL, 0) + start,
        reward_model=there.get(REWARD_MODEL, 0),
        kv_cache=kv,
        keeps_kv=keeps_kv,
        turns=(*turns, *(() if keeps_kv else (Turn("keys and values", kv_cache=kv),))),
    )


def adapter_parameters(model: ModelConfig, facts: ModelSizes) -> int:
    """Parameters of the LoRA adapter, 0 without one; a layer of an unknown name counts as one of the feed-forward."""
    hidden, query, kv = facts.hidden, facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
    both_sides = {
        "q_proj": hidden + query,
        "k_proj": hidden + kv,
        "v_proj": hidden + kv,
        "o_proj": query + hidden,
    } | dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + facts.intermediate)
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


def has_pool(config: PPOConfig) -> bool:
    """Whether the rollout engine takes memory for keys and values beforehand."""
    return config.actor_rollout_ref.rollout.name == "native"


def sequences_at_a_time(config: PPOConfig, needs: Needs = NOTHING) -> int:
    """Sequences that the rollout engine generates together: at most the samples and greedy rows of one round."""
    rollout = config.actor_rollout_ref.rollout
    return min(rollout.max_num_seqs, config.data.gen_batch_size * (rollout.n + needs.greedy_baseline))


def gib(count: float) -> str:
    """Bytes in words."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _passes(
    config: PPOConfig,
    sizes: Mapping[str, ModelSizes],
    held: Mapping[str, Holding],
    away: Away,
    micro_batch: int | None,
    on_gpu: bool,
) -> Iterator[Turn]:
    """What each kind of pass adds."""
    for one in passes_of(config):
        if one.is_used:
            model, facts, tokens = config.models[one.model], sizes[one.model], one.tokens(config, micro_batch)
            gives_log_probs = one.model in (ACTOR_MODEL, PROCESS_REWARD_MODEL)  # others give one number per token
            yield Turn(
                _pass_name(one),
                one,
                brought=away.reference if one.size.startswith(REFERENCE_PASS) else away.weights.get(one.model, 0),
                gradients=held[one.model].gradients if one.trains else 0,
                logits=logits(model, facts, tokens, trains=one.trains, on_gpu=on_gpu) if gives_log_probs else 0,
                activations=activations(model, facts, tokens, trains=one.trains, on_gpu=on_gpu),
            )


def _pass_name(one: Pass) -> str:
    if one.size.startswith(REFERENCE_PASS):
        return "one pass of the reference"
    if one.trains:
        return "one training pass" + (f" of {OF[one.model]}" if one.model in OF else "")
    return f"one pass of {OF.get(one.model, 'the policy')}"


def _updates(held: Mapping[str, Holding], away: Away) -> Iterator[Turn]:
    """What the optimiser's step of each trained model adds."""
    for key, holding in held.items():
        if holding.summed:
            name = "the optimiser's step" + (f" of {OF[key]}" if key in OF else "")
            yield Turn(name, brought=away.of_model(key), gradients=holding.summed)


def _kv_cache(config: PPOConfig, facts: ModelSizes, needs: Needs, memory_bytes: int | None) -> int:
    rollout, per_token = config.actor_rollout_ref.rollout, _kv_per_token(config, facts)
    if not has_pool(config):
        return sequences_at_a_time(config, needs) * longest(config) * per_token
    whole = (rollout.max_num_seqs * math.ceil(longest(config) / KV_BLOCK) + 1) * KV_BLOCK * per_token
    return whole if memory_bytes is None else min(whole, int(rollout.gpu_memory_utilization * memory_bytes))


def _kv_per_token(config: PPOConfig, facts: ModelSizes) -> int:
    return 2 * facts.layers * facts.kv_heads * facts.head_dim * BYTES[config.actor_rollout_ref.model.dtype]
