"""The passes of a run through its models: how many tokens each holds in one process, and the memory that these take.

Sequences run end to end, without padding. In values per token and layer, a pass with gradients keeps

    transformers' own layers      11 × hidden + 4 × intermediate: norms, queries, keys, values, attention, residuals;
                                  gate, its activation, up and their product
    the fused pass, on a GPU      4 × hidden, 2 × queries, 2 × keys and 3 × intermediate; where heads have their own
                                  norms, queries and keys before them, too

The fused pass on a CPU is torch's functions and counts as transformers' layers. With gradient checkpointing
a layer keeps its input, in the fused pass two parts, and one layer at a time is computed again.
"""

import math
from dataclasses import dataclass

from burnish.config.key import read
from burnish.config.model import ModelConfig
from burnish.config.placement import split_of
from burnish.config.ppo import ACTOR_MODEL, CRITIC_MODEL, PROCESS_REWARD_MODEL, REWARD_MODEL, PPOConfig

BYTES = {"auto": 4, "float32": 4, "bfloat16": 2, "float16": 2}
FLOAT32 = 4
KEPT_HIDDEN, KEPT_INTERMEDIATE = 11, 4
FUSED = ("llama", "mistral", "qwen2", "qwen3")  # model types; BACKBONES in models/llama.py
HEAD_NORMS = ("qwen3",)
REFERENCE_PASS = "actor_rollout_ref.ref.log_prob_"
LAYERS_ON_DEVICE = 2

# Logits at a time: CHUNK_ELEMENTS and CHUNK_ROWS in ops/linear_log_probs.py, by whether it is on a GPU; and those of
# the plain way, CHUNK_ELEMENTS in engine/forward.py, with their log-softmax and its gradient.
CHUNK_ELEMENTS, CHUNK_ROWS = {False: 2**20, True: 2**28}, 256
PLAIN_ELEMENTS, PLAIN_COPIES = 2**25, 3


@dataclass(frozen=True)
class ModelFacts:
    """Sizes of a decoder, which `models/facts.py` reads from its folder. `parameters` counts stored weights, or is
    estimated where there are none to look at."""

    model_type: str
    context: int | None
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    parameters: int


@dataclass(frozen=True)
class PlannedPass:
    """One kind of pass. `size` is the key of its number of sequences; `budget` its tokens, where it is cut by those."""

    model: str
    size: str
    budget: int | None
    sequences: int  # that there are to pass in one process, at most
    trains: bool
    is_used: bool = True

    def tokens(self, config: PPOConfig, micro_batch: int | None = None) -> int:
        """Tokens at most, where a pass that is not cut by tokens has `micro_batch` sequences; None: what its key
        says. A sequence that is longer than the budget is alone in its pass. Processes that share it have a part of
        it each."""
        length = longest(config)
        wanted = self.budget or (micro_batch or read(config, self.size) or 1) * length
        whole = max(length, min(wanted, self.sequences * length))
        return math.ceil(whole / split_of(config, self.model).ulysses)


def passes_of(config: PPOConfig) -> list[PlannedPass]:
    """All kinds of passes, also those that this run has none of."""
    policy, critic, process, judge = config.actor_rollout_ref, config.critic, config.process_reward, config.reward_model
    actor, rollout, ref, n = policy.actor, policy.rollout, policy.ref, policy.rollout.n
    every = config.data.train_batch_size * n

    def one(
        model: str, prefix: str, by_tokens: bool, tokens: int, prompts: int | None, used: bool = True
    ) -> PlannedPass:
        """`prompts` of an optimiser step; None where nothing is trained."""
        size, budget = f"{prefix}micro_batch_size_per_gpu", tokens if by_tokens else None
        own = math.ceil((every if prompts is None else prompts * n) / split_of(config, model).data)
        return PlannedPass(model, size, budget, own, prompts is not None, used)

    log_prob, ref_log_prob = rollout.log_prob_max_token_len_per_gpu, ref.log_prob_max_token_len_per_gpu
    return [
        one(ACTOR_MODEL, "actor_rollout_ref.actor.ppo_", actor.use_dynamic_bsz, actor.ppo_max_token_len_per_gpu,
            actor.ppo_mini_batch_size),
        one(ACTOR_MODEL, "actor_rollout_ref.rollout.log_prob_", rollout.log_prob_use_dynamic_bsz, log_prob, None),
        one(ACTOR_MODEL, REFERENCE_PASS, ref.log_prob_use_dynamic_bsz, ref_log_prob, None, config.reads_reference),
        one(CRITIC_MODEL, "critic.ppo_", critic.use_dynamic_bsz, critic.ppo_max_token_len_per_gpu,
            critic.ppo_mini_batch_size, bool(critic.enable)),
        one(CRITIC_MODEL, "critic.forward_", critic.use_dynamic_bsz, critic.forward_max_token_len_per_gpu, None,
            bool(critic.enable)),
        one(PROCESS_REWARD_MODEL, "process_reward.", process.use_dynamic_bsz, process.max_token_len_per_gpu,
            process.mini_batch_size, bool(process.enable)),
        one(REWARD_MODEL, "reward_model.", judge.use_dynamic_bsz, judge.forward_max_token_len_per_gpu, None,
            judge.enable),
    ]  # fmt: skip


def longest(config: PPOConfig) -> int:
    return config.data.max_prompt_length + config.data.max_response_length


def is_recomputed(model: ModelConfig) -> bool:
    """Whether gradient checkpointing is on; where nobody has decided, it is."""
    return model.enable_gradient_checkpointing is not False


def is_fused(model: ModelConfig, facts: ModelFacts) -> bool:
    """Whether layers are run by the fused passes of `models/backbones.py`."""
    return facts.model_type in FUSED and model.use_fused_kernels is not False and model.use_remove_padding


def activations(model: ModelConfig, facts: ModelFacts, tokens: int, *, trains: bool, on_gpu: bool) -> int:
    """Bytes that a pass of so many tokens holds for its backward pass, or in one layer where there is none."""
    if is_fused(model, facts) and on_gpu:
        query, keys = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
        layer = 4 * facts.hidden + 2 * query + 2 * keys + 3 * facts.intermediate
        layer += query + keys if facts.model_type in HEAD_NORMS else 0
    else:
        layer = KEPT_HIDDEN * facts.hidden + KEPT_INTERMEDIATE * facts.intermediate
    kept = layer * facts.layers
    if not trains:
        kept = layer
    elif model.enable_activation_offload and on_gpu:
        kept = layer * min(LAYERS_ON_DEVICE, facts.layers)
    elif is_recomputed(model):
        kept = facts.layers * facts.hidden * (2 if is_fused(model, facts) else 1) + layer
    return tokens * kept * BYTES[model.dtype]


def logits(model: ModelConfig, facts: ModelFacts, tokens: int, *, trains: bool, on_gpu: bool) -> int:
    """Bytes of the output layer over so many tokens, at most: the logits of a chunk and their gradients. These are the
    chunk's, in the type of the weights, and the sum of the weight's over all chunks in float32."""
    if model.use_fused_kernels is False:
        return min(tokens * facts.vocab, PLAIN_ELEMENTS) * FLOAT32 * PLAIN_COPIES
    width = BYTES[model.dtype]
    copy = width if trains and width != FLOAT32 else 0  # float32 gradients replace the logits
    weight = facts.vocab * facts.hidden * FLOAT32 if trains and not model.has_lora else 0
    return min(tokens, rows_at_a_time(facts, on_gpu)) * facts.vocab * (FLOAT32 + copy) + weight


def rows_at_a_time(facts: ModelFacts, on_gpu: bool) -> int:
    """Tokens whose logits exist together at most."""
    return max(CHUNK_ROWS, CHUNK_ELEMENTS[on_gpu] // facts.vocab)
