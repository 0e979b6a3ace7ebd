"""`process_reward.*`: the model that rewards every token and is trained along with the policy (PRIME)."""

from dataclasses import dataclass

from burnish.config.key import Keys, key, section
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig

PROCESS_REWARD = "workers/process_reward.py"


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
