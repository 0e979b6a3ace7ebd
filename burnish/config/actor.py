"""`actor_rollout_ref.actor` and `.ref`, `critic` and `process_reward`: the update of the policy, the log-probs of its
reference, and the models of estimators that need them: a value model, and one that rewards every token (PRIME)."""

from dataclasses import dataclass
from typing import Any

from burnish.config.fsdp import NOT_TRAINED, FSDPConfig
from burnish.config.key import Keys, key, section
from burnish.config.model import ModelConfig
from burnish.config.optim import OptimConfig
from burnish.config.profiler import ProfilerConfig
from burnish.config.trainer import PPO, SETUP

STRATEGIES = ("fsdp", "fsdp2", "megatron")
MEGATRON = "training with Megatron-core"
FULL_KL = {"full": "it needs the whole vocabulary for every token; use low_var_kl"}
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
KL_KINDS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
PARTS = ["model", "optimizer", "extra"]
ALL_PARTS = [*PARTS, "hf_model"]
ACTOR = "workers/actor_rollout_ref.py"
CRITIC, PROCESS_REWARD = "workers/critic.py", "workers/process_reward.py"
LOSS_FILES = "algorithms/losses"
CLIP_COV, KL_COV, VANILLA = (f"{LOSS_FILES}/{name}.py" for name in ("clip_cov", "kl_cov", "vanilla"))
INPUTS, REGULARISE = f"{LOSS_FILES}/inputs.py", f"{LOSS_FILES}/regularise.py"
MEMORY_HINT = "entropy is always computed in chunks and recomputed in the backward pass"

LOSSES = (  # the built-in ones, as algorithms/losses lists them
    "vanilla", "gspo", "geo_mean", "cispo", "sapo", "dppo_tv", "dppo_kl", "clip_cov", "kl_cov", "dro", "gpg",
    "reinforce",
)  # fmt: skip
OWN_AGGREGATION = {"gspo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean", "geo_mean": "a mean over sequences"}
USED_BY_LOSS = {  # keys of the actor that only some of the built-in losses read
    **dict.fromkeys(
        ("clip_ratio", "clip_ratio_low", "clip_ratio_high"),
        ("vanilla", "gspo", "geo_mean", "cispo", "dppo_tv", "dppo_kl", "clip_cov"),
    ),
    "clip_ratio_c": ("vanilla", "dppo_tv", "dppo_kl"),
    **{f"policy_loss.clip_cov_{name}": ("clip_cov",) for name in ("ratio", "lb", "ub")},
    **dict.fromkeys(("policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef"), ("kl_cov",)),
    **dict.fromkeys(("policy_loss.tau_pos", "policy_loss.tau_neg"), ("sapo",)),
    "policy_loss.dro_beta": ("dro",),
}


def strategy() -> Any:
    return key(
        "fsdp",
        "how the model is spread over devices",
        choices=STRATEGIES,
        later={"megatron": MEGATRON},
        instead="Leave the strategy out",
        inert="several processes shard a model with FSDP2; one process holds all of it",
    )


def ulysses(reader: str = ACTOR) -> Any:
    doc = "processes that split each sequence between them; must divide the pool and the attention heads"
    return key(1, doc, reader, low=1)


@dataclass
class PolicyLossConfig(Keys):
    """Which policy loss, and the numbers of those that have their own."""

    # Which names there are is the table's to say (algorithms/losses): a user can add one.
    loss_mode: str = key("vanilla", "policy loss, or an import path package.module:function", ACTOR)
    clip_cov_ratio: float = key(0.0002, "clip_cov: share of tokens left out of the loss", CLIP_COV, above=0, high=1)
    clip_cov_lb: float = key(1.0, "clip_cov: lower covariance bound", CLIP_COV)
    clip_cov_ub: float = key(5.0, "clip_cov: upper covariance bound", CLIP_COV)
    kl_cov_ratio: float = key(0.0002, "kl_cov: share of tokens with a penalty", KL_COV, above=0, high=1)
    ppo_kl_coef: float = key(0.1, "kl_cov: weight of the penalty", KL_COV, low=0)
    tau_pos: float = key(1.0, "sapo: temperature of positive advantages", f"{LOSS_FILES}/sapo.py", above=0)
    tau_neg: float = key(1.05, "sapo: temperature of the other advantages", f"{LOSS_FILES}/sapo.py", above=0)
    dro_beta: float = key(0.1, "dro: weight of the squared log-ratio", f"{LOSS_FILES}/dro.py", above=0)


@dataclass
class CheckpointConfig(Keys, reader="workers/model_worker.py"):
    """Parts of a model's checkpoint, and when they are written. The Hugging Face folder is always there."""

    save_contents: list[str] = key(
        PARTS, "parts written: model, optimizer, extra; hf_model alone: only what transformers reads"
    )
    load_contents: list[str] = key(None, "parts read on resume; null: those of save_contents")
    async_save: bool = key(False, "write the files while training continues", "trainer/ppo.py")


@dataclass
class ActorConfig(Keys, reader=ACTOR):
    """How the policy is updated from one batch of experience."""

    strategy: str = strategy()
    ppo_mini_batch_size: int = key(256, "prompts per optimiser step, over all devices", low=1)
    ppo_micro_batch_size_per_gpu: int | None = key(
        None, "sequences per forward and backward pass; null: planned from memory", low=1
    )
    use_dynamic_bsz: bool = key(False, "split micro-batches by tokens instead of sequences")
    ppo_max_token_len_per_gpu: int = key(16384, "tokens per micro-batch with use_dynamic_bsz", low=1)
    ppo_epochs: int = key(1, "passes over each batch", low=1)
    shuffle: bool = key(False, "shuffle the groups of a batch before splitting it into mini-batches")
    clip_ratio: float = key(0.2, "PPO clip range of the probability ratio", "config/rules/loss.py", above=0)
    clip_ratio_low: float = key(None, "clip range below 1; null: clip_ratio", INPUTS, above=0, high=1)
    clip_ratio_high: float = key(None, "clip range above 1; null: clip_ratio", INPUTS, above=0)
    clip_ratio_c: float = key(3.0, "dual clip: bound on the ratio where the advantage is negative", VANILLA, above=1)
    loss_agg_mode: str = key("token-mean", "how token losses become one number", INPUTS, choices=AGGREGATIONS)
    loss_scale_factor: float | None = key(
        None, "divisor of seq-mean-token-sum-norm; null: max_response_length", INPUTS, above=0
    )
    entropy_coeff: float = key(0.0, "weight of the entropy bonus", REGULARISE)
    use_kl_loss: bool = key(False, "add a KL term to the loss", REGULARISE)
    kl_loss_coef: float = key(0.001, "weight of the KL term in the loss", REGULARISE, low=0)
    kl_loss_type: str = key(
        "low_var_kl",
        "estimate of the KL; with +, the gradient is that of k2",
        REGULARISE,
        choices=(*KL_KINDS, *(kind + "+" for kind in KL_KINDS)),
        refused=FULL_KL,
    )
    policy_loss: PolicyLossConfig = section(PolicyLossConfig)
    grad_clip: float = key(1.0, "largest gradient norm; a larger gradient is scaled down", above=0)
    ulysses_sequence_parallel_size: int = ulysses()
    entropy_from_logits_with_chunking: bool = key(False, "compute entropy in chunks", inert=MEMORY_HINT)
    entropy_checkpointing: bool = key(False, "recompute entropy in the backward pass", inert=MEMORY_HINT)
    use_torch_compile: bool = key(
        False, "compile the model", inert="this version runs the model as it is, without compiling"
    )
    state_masking: bool = key(
        True,
        "exclude from the loss what the policy did not write: retrieved text, tool responses, other turns",
        "trainer/experience.py",
    )
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    optim: OptimConfig = section(OptimConfig)
    fsdp_config: FSDPConfig = section(FSDPConfig)
    megatron: dict[str, Any] = key({}, "Megatron-core's own keys", later=MEGATRON)
    profiler: ProfilerConfig = section(ProfilerConfig)


@dataclass
class RefConfig(Keys, reader=ACTOR):
    """How the reference policy's log-probs are computed."""

    log_prob_micro_batch_size_per_gpu: int | None = key(
        None, "sequences per forward pass; null: planned from memory", low=1
    )
    log_prob_use_dynamic_bsz: bool = key(None, "split micro-batches by tokens; null: as the actor")
    log_prob_max_token_len_per_gpu: int = key(None, "tokens per micro-batch; null: as the actor", low=1)
    fsdp_config: FSDPConfig = section(FSDPConfig, readers={"param_offload": ACTOR} | NOT_TRAINED)
    megatron: dict[str, Any] = key({}, "Megatron-core's own keys", later=MEGATRON)
    profiler: ProfilerConfig = section(ProfilerConfig)


@dataclass
class CriticConfig(Keys, reader=CRITIC):
    """The value model and its update. What is left null follows the actor."""

    enable: bool = key(None, "train a critic; null: where the estimator needs one", SETUP)
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
    cliprange_value: float = key(0.5, "largest change of a value per batch", "algorithms/losses/value.py", above=0)
    loss_agg_mode: str = key(
        None, "how token losses become one number; null: the actor's", INPUTS, choices=AGGREGATIONS
    )
    grad_clip: float = key(1.0, "largest gradient norm; a larger gradient is scaled down", above=0)
    ulysses_sequence_parallel_size: int = ulysses(CRITIC)
    checkpoint: CheckpointConfig = section(
        CheckpointConfig, readers={"async_save": "config/rules/run.py"}, async_save=None
    )
    fsdp_config: FSDPConfig = section(FSDPConfig, readers={"param_offload": CRITIC})
    megatron: dict[str, Any] = key({}, "Megatron-core's own keys", later=MEGATRON)
    profiler: ProfilerConfig = section(ProfilerConfig)


@dataclass
class ProcessRewardConfig(Keys, reader=PROCESS_REWARD):
    """The implicit process reward model and its update. What is left null follows the actor."""

    enable: bool = key(None, "train a process reward model; null: where the estimator needs one", SETUP)
    model: ModelConfig = section(ModelConfig, readers={"path": PROCESS_REWARD, "tokenizer_path": PROCESS_REWARD})
    optim: OptimConfig = section(OptimConfig)
    beta: float = key(0.05, "reward per token: beta × its log-ratio to the model's own start", above=0)
    update: str = key(
        "before", "train it on a batch before it rewards that batch, or after", PPO, choices=("before", "after")
    )
    mini_batch_size: int = key(None, "prompts per optimiser step; null: the actor's", low=1)
    micro_batch_size_per_gpu: int | None = key(None, "sequences per pass; null: planned from memory", low=1)
    use_dynamic_bsz: bool = key(None, "split micro-batches by tokens; null: as the actor")
    max_token_len_per_gpu: int = key(None, "tokens per micro-batch; null: the actor's", low=1)
    grad_clip: float = key(1.0, "largest gradient norm; a larger gradient is scaled down", above=0)
