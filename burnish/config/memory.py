"""How much memory a run needs on one device, estimated from the model's sizes before anything is loaded.

An estimate, not a promise: it counts what grows with the model and the batch, and leaves out what is small or varies
(buffers of libraries, fragmentation). In bytes, for P parameters in a type of w bytes, of each model its own:

    always     weights w·P; where w is not 4, float32 masters 4·P; Adam's moments 8·P; the same for a critic and for a
               process reward model, which keeps its start w·P beside it; and reference and reward model, w·P each
    training   gradients in float32 4·P and, where w is not 4, those of one pass w·P, before they are added up; the
               logits of one chunk of response tokens; the activations of one pass, padded to its longest sequence
    sampling   keys and values: the native engine's pool has room for `max_num_seqs` sequences of full length, within
               its share of the device; the hf engine keeps those of the sequences that run

Sampling and training take turns, and so do the models that are trained, so the peak is what is always there plus the
larger turn; of gradients, logits and activations, each is that of the model which has most of it. With
`free_cache_engine=false` the pool is always there. A reward model's pass has no gradient: it keeps one layer at a time.

Sizes come in by the key of the model, as `PPOConfig.models` has them; a model without any has those of the policy.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from burnish.config.model import ModelConfig
from burnish.config.needs import Needs
from burnish.config.ppo import ACTOR_MODEL, CRITIC_MODEL, PROCESS_REWARD_MODEL, REWARD_MODEL, PPOConfig

NOTHING = Needs()
BYTES = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}
FLOAT32 = 4
KV_BLOCK = 16  # tokens; `block_size` in rollout/native/engine.py
LOGITS_AT_A_TIME = 2**25  # CHUNK_ELEMENTS in engine/forward.py: more tokens are computed in chunks of this size
LOGIT_COPIES = 3  # logits, their log-softmax and its gradient, in float32
# Values per token that one decoder layer keeps for its backward pass: this often the hidden size (norms, queries, keys,
# values, attention, residuals) and this often the feed-forward's (gate, its activation, up, their product).
KEPT_HIDDEN, KEPT_INTERMEDIATE = 11, 4


class ModelSizes(Protocol):
    """The sizes of a decoder, as `models.facts.ModelFacts` has them."""

    @property
    def parameters(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def intermediate(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class Memory:
    """Bytes by what they hold."""

    weights: int
    masters: int
    moments: int
    reference: int
    critic: int
    process_reward: int
    reward_model: int
    gradients: int
    logits: int
    activations: int
    kv_cache: int
    keeps_kv: bool = False  # also while it trains

    @property
    def always(self) -> int:
        """What is there during the whole step."""
        policy = self.weights + self.masters + self.moments + self.reference
        return policy + self.critic + self.process_reward + self.reward_model + self.keeps_kv * self.kv_cache

    @property
    def training(self) -> int:
        """What one pass of training adds."""
        return self.gradients + self.logits + self.activations

    @property
    def peak(self) -> int:
        """What is always there, plus sampling or one pass of training, whichever is larger."""
        return self.always + max(0 if self.keeps_kv else self.kv_cache, self.training)


def estimate_memory(
    config: PPOConfig,
    facts: Mapping[str, ModelSizes],
    micro_batch: int,
    needs: Needs = NOTHING,
    memory_bytes: int | None = None,
) -> Memory:
    """The memory of a run whose passes hold `micro_batch` sequences of full length.

    `memory_bytes` is the memory of the device, of which the KV pool takes a share at most; None: not known.
    """
    policy = facts[ACTOR_MODEL]
    sizes = {key: facts.get(key, policy) for key in config.models}
    widths = {key: BYTES[model.dtype] for key, model in config.models.items()}
    count = {key: sizes[key].parameters for key in sizes}
    width = widths[ACTOR_MODEL]
    trained = [key for key in sizes if key != REWARD_MODEL]
    vocab = max(sizes[key].vocab for key in trained if key != CRITIC_MODEL)  # its head gives one number
    logits = min(micro_batch * config.data.max_response_length * vocab, LOGITS_AT_A_TIME)
    per_token = max(_activations_per_token(model, sizes[key], key in trained) for key, model in config.models.items())
    always = {key: count[key] * _trained(widths[key]) for key in trained}
    start = count[PROCESS_REWARD_MODEL] * widths[PROCESS_REWARD_MODEL] if PROCESS_REWARD_MODEL in sizes else 0
    return Memory(
        weights=policy.parameters * width,
        masters=policy.parameters * _master(width),
        moments=policy.parameters * 2 * FLOAT32,
        reference=policy.parameters * width if config.reads_reference else 0,
        critic=always.get(CRITIC_MODEL, 0),
        process_reward=always.get(PROCESS_REWARD_MODEL, 0) + start,
        reward_model=count[REWARD_MODEL] * widths[REWARD_MODEL] if REWARD_MODEL in sizes else 0,
        gradients=max(count[key] * _gradient(widths[key]) for key in trained),
        logits=logits * FLOAT32 * LOGIT_COPIES,
        activations=micro_batch * longest(config) * per_token,
        kv_cache=_kv_cache(config, policy, needs, memory_bytes),
        keeps_kv=has_pool(config) and not config.actor_rollout_ref.rollout.free_cache_engine,
    )


def host_memory() -> int:
    """Memory of this machine in bytes, or what a container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdigit() else total


def longest(config: PPOConfig) -> int:
    """Tokens of a sequence at most."""
    return config.data.max_prompt_length + config.data.max_response_length


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


def _master(width: int) -> int:
    """Bytes of a parameter's float32 copy, which the optimiser steps on; a float32 parameter is its own."""
    return 0 if width == FLOAT32 else FLOAT32


def _trained(width: int) -> int:
    """Bytes of a trained parameter throughout: itself, its master and its moments."""
    return width + _master(width) + 2 * FLOAT32


def _gradient(width: int) -> int:
    """Bytes of a parameter's gradient: in float32, and that of one pass where the parameter has another type."""
    return FLOAT32 if width == FLOAT32 else FLOAT32 + width


def _kv_cache(config: PPOConfig, facts: ModelSizes, needs: Needs, memory_bytes: int | None) -> int:
    rollout, per_token = config.actor_rollout_ref.rollout, _kv_per_token(config, facts)
    if not has_pool(config):
        return sequences_at_a_time(config, needs) * longest(config) * per_token
    whole = (rollout.max_num_seqs * math.ceil(longest(config) / KV_BLOCK) + 1) * KV_BLOCK * per_token
    return whole if memory_bytes is None else min(whole, int(rollout.gpu_memory_utilization * memory_bytes))


def _kv_per_token(config: PPOConfig, facts: ModelSizes) -> int:
    return 2 * facts.layers * facts.kv_heads * facts.head_dim * BYTES[config.actor_rollout_ref.model.dtype]


def _activations_per_token(model: ModelConfig, facts: ModelSizes, is_trained: bool) -> int:
    """With gradient checkpointing only each layer's input is kept, and one layer at a time is recomputed."""
    layer = KEPT_HIDDEN * facts.hidden + KEPT_INTERMEDIATE * facts.intermediate
    if not is_trained:
        return layer * BYTES[model.dtype]
    kept = facts.layers * facts.hidden + layer if model.enable_gradient_checkpointing else facts.layers * layer
    return kept * BYTES[model.dtype]
