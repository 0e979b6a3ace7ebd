"""`critic.*` and `process_reward.*`: the models of estimators that need them, a value model, and one that rewards every
token and is trained along with the policy (PRIME)."""

from dataclasses import dataclass
from typing import Any

from burnish.config.actor import AGGREGATIONS, MEGATRON, CheckpointConfig, strategy, ulysses
from burnish.config.fsdp import FSDPConfig
from burnish.config.key import Keys, key, section
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig

CRITIC = "workers/critic.py"
PROCESS_REWARD = "workers/process_reward.py"


@dataclass
class CriticConfig(Keys, reader=CRITIC):
    """The value model and its update. What is left null follows the actor."""

    enable: bool = key(None, "train a critic; null: where the estimator needs one", reader="trainer/setup.py")
    strategy: str = strategy()
    model: ModelConfig = section(ModelConfig, readers={"path": CRITIC, "tokenizer_path": CRITIC})
    optim: OptimConfig = section(OptimConfig, lr=1e-5)
    ppo_mini_batch_size: int = key(None, "prompts per optimiser step; null: the actor's", low=1)
    ppo_micro_batch_size_per_gpu: int | None = key(
        None, "sequences per forward and backward pass; null: planned from memory", low=1
    )
    forward_micro_batch_size_per_gpu: int | None = key(
        None, "sequences per forward pass; null: ppo_micro_batch_size_per_gpu", low=1
    )
    use_dynamic_bsz: bool = key(None, "split micro-batches by tokens; null: as the actor")
    ppo_max_token_len_per_gpu: int = key(None, "tokens per micro-batch; null: the actor's", low=1)
    forward_max_token_len_per_gpu: int = key(
        None, "tokens per forward micro-batch; null: ppo_max_token_len_per_gpu", low=1
    )
    ppo_epochs: int = key(None, "passes over each batch; null: the actor's", low=1)
    shuffle: bool = key(None, "shuffle the groups of a batch; null: as the actor")
    cliprange_value: float = key(
        0.5, "largest change of a value per batch", reader="algorithms/losses/value.py", above=0
    )
    loss_agg_mode: str = key(
        None,
        "how token losses become one number; null: the actor's",
        reader="algorithms/losses/inputs.py",
        choices=AGGREGATIONS,
    )
    grad_clip: float = key(1.0, "largest gradient norm; a larger gradient is scaled down", above=0)
    ulysses_sequence_parallel_size: int = ulysses(CRITIC)
    checkpoint: CheckpointConfig = section(
        CheckpointConfig, readers={"async_save": "config/rules/run.py"}, async_save=None
    )
    fsdp_config: FSDPConfig = section(FSDPConfig, readers={"param_offload": CRITIC})
    megatron: dict[str, Any] = key({}, "Megatron-core's own keys", later=MEGATRON)
    profiler: dict[str, Any] = key({}, "profiling of this worker", later="profiling")


@dataclass
class ProcessRewardConfig(Keys, reader=PROCESS_REWARD):
    """The implicit process reward model and its update. What is left null follows the actor."""

    enable: bool = key(
        None, "train a process reward model; null: where the estimator needs one", reader="trainer/setup.py"
    )
    model: ModelConfig = section(ModelConfig, readers={"path": PROCESS_REWARD, "tokenizer_path": PROCESS_REWARD})
    optim: OptimConfig = section(OptimConfig)
    beta: float = key(0.05, "reward per token: beta × its log-ratio to the model's own start", above=0)
    update: str = key(
        "before",
        "train it on a batch before it rewards that batch, or after",
        reader="trainer/ppo.py",
        choices=("before", "after"),
    )
    mini_batch_size: int = key(None, "prompts per optimiser step; null: the actor's", low=1)
    micro_batch_size_per_gpu: int | None = key(None, "sequences per pass; null: planned from memory", low=1)
    use_dynamic_bsz: bool = key(None, "split micro-batches by tokens; null: as the actor")
    max_token_len_per_gpu: int = key(None, "tokens per micro-batch; null: the actor's", low=1)
    grad_clip: float = key(1.0, "largest gradient norm; a larger gradient is scaled down", above=0)
