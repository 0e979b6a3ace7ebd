"""How much memory a run needs on one device, estimated from the model's sizes before anything is loaded.

An estimate, not a promise: it counts what grows with the model and the batch (weights, gradients, Adam's moments, KV
cache, logits, activations) and leaves out what is small or varies (buffers of libraries, fragmentation). Generation and
training take turns, so the peak is what is always there plus the larger of the two.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from burnish.config.ppo import PPOConfig

BYTES = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}
LOGIT_COPIES = 3  # logits, their log-softmax and its gradient, in float32
LAYER_ACTIVATIONS = 18  # values per token and hidden unit that one decoder layer keeps for its backward pass


class ModelSizes(Protocol):
    """The sizes of a decoder, as `models.facts.ModelFacts` has them."""

    @property
    def parameters(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
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
    gradients: int
    moments: int
    reference: int
    critic: int
    kv_cache: int
    logits: int
    activations: int

    @property
    def always(self) -> int:
        """What is there during the whole step."""
        return self.weights + self.gradients + self.moments + self.reference + self.critic

    @property
    def peak(self) -> int:
        """What is always there, plus generation or one pass of training, whichever is larger."""
        return self.always + max(self.kv_cache, self.logits + self.activations)


def estimate_memory(config: PPOConfig, facts: ModelSizes, micro_batch: int) -> Memory:
    """The memory of a run whose passes hold `micro_batch` sequences of full length."""
    width = BYTES[config.actor_rollout_ref.model.dtype]
    model = facts.parameters * width
    tokens = micro_batch * longest(config)
    uses_reference = config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    return Memory(
        weights=model,
        gradients=model,
        moments=2 * model,
        reference=model if uses_reference else 0,
        critic=4 * facts.parameters * BYTES[config.critic.model.dtype] if config.critic.enable else 0,
        kv_cache=sequences_at_a_time(config) * longest(config) * _kv_per_token(config, facts),
        logits=tokens * facts.vocab * 4 * LOGIT_COPIES,
        activations=tokens * _activations_per_token(config, facts),
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


def sequences_at_a_time(config: PPOConfig) -> int:
    """Sequences that the rollout engine generates together."""
    rollout = config.actor_rollout_ref.rollout
    return min(rollout.max_num_seqs, config.data.train_batch_size * rollout.n)


def gib(count: float) -> str:
    """Bytes in words."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def _kv_per_token(config: PPOConfig, facts: ModelSizes) -> int:
    return 2 * facts.layers * facts.kv_heads * facts.head_dim * BYTES[config.actor_rollout_ref.model.dtype]


def _activations_per_token(config: PPOConfig, facts: ModelSizes) -> int:
    """With gradient checkpointing only each layer's input is kept, and one layer at a time is recomputed."""
    model = config.actor_rollout_ref.model
    values = facts.layers * LAYER_ACTIVATIONS
    if model.enable_gradient_checkpointing:
        values = facts.layers + LAYER_ACTIVATIONS
    return values * facts.hidden * BYTES[model.dtype]
