"""`GenerationConfig` and `EvalConfig`: the whole configurations of `burnish generate`, responses to the prompts of a
file, and of `burnish eval`, scores of such a file."""

from dataclasses import dataclass
from typing import Any

from burnish.config.data import TRUNCATION
from burnish.config.key import Keys, key, section
from burnish.config.model import AUTO, ModelConfig, dtype_key
from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig, RuleConfig
from burnish.config.rollout import BaseRolloutConfig, RetrieverConfig, engine_key
from burnish.config.trainer import DEVICES, GPU, MACHINES, PROCESSES, ProcessesConfig

NO_RAY = "this command runs without Ray"
ONE = "burnish generate uses one machine; set it to 1"
READER, WORKER, EVALUATION = "trainer/generation.py", "trainer/generation_worker.py", "trainer/evaluation.py"
NO_BACKWARD = "there is no backward pass in burnish generate"
NOT_TRAINED = "nothing is trained in burnish generate"
SAMPLED = "the log-probs of what is sampled are always written, and no pass computes them again"


@dataclass
class GenerationDataConfig(Keys, reader=READER):
    """The prompts, and where the responses go."""

    path: str = key(None, "rows with prompts: parquet, json or jsonl", path=True)
    prompt_key: str = key("prompt", "column with the prompt")
    n_samples: int = key(1, "responses per prompt", low=1)
    output_path: str = key(None, "parquet file for the rows with their responses", path=True)
    batch_size: int = key(128, "prompts answered and saved at a time", low=1)
    overwrite: bool = key(False, "replace an existing output file, or an unfinished one of another command")
    truncation: str = key("error", "what to do with a prompt over rollout.prompt_length", choices=TRUNCATION)
    apply_chat_template_kwargs: dict[str, Any] = key({}, "arguments for the chat template")
    escape_special_tokens: bool = key(False, "make special tokens in messages ordinary text")
    max_obs_length: int | None = key(
        None, "longest result of one search, in tokens, including its tags; null: no limit", WORKER, low=1
    )


@dataclass
class GenerationModelConfig(ModelConfig):
    """The model that answers: no weight of it is trained."""

    enable_gradient_checkpointing: bool | str = key(
        False, "recompute activations in the backward pass", inert=NO_BACKWARD, choices=AUTO
    )
    enable_activation_offload: bool = key(False, "keep activations in host memory", inert=NO_BACKWARD)


@dataclass
class GenerationRolloutConfig(BaseRolloutConfig, reader=READER):
    """Engine, sampling and agent loop."""

    name: str = engine_key(reader="rollout/__init__.py")
    prompt_length: int = key(512, "longest prompt, in tokens", low=1)
    response_length: int = key(512, "longest response, in tokens", low=1)
    dtype: str = dtype_key("type of the rollout engine's weights; auto: model.dtype")
    free_cache_engine: bool = key(True, "free the KV pool while training", inert=NOT_TRAINED)
    n: int = key(1, "responses per prompt, which data.n_samples sets: 1 here", "config/rules/sampling.py", low=1)
    calculate_log_probs: bool = key(True, "keep the log-probs of sampled tokens", inert=SAMPLED)
    log_prob_micro_batch_size_per_gpu: int | None = key(None, "sequences per pass of log-probs", inert=SAMPLED)
    log_prob_use_dynamic_bsz: bool | None = key(None, "split micro-batches by tokens", inert=SAMPLED)
    log_prob_max_token_len_per_gpu: int | None = key(None, "tokens per micro-batch", inert=SAMPLED)


@dataclass
class GenerationTrainerConfig(ProcessesConfig, reader=READER):
    """Where generation runs."""

    nnodes: int = key(1, "machines", low=1, later=MACHINES, instead=ONE)
    n_gpus_per_node: int | str = key(
        "auto",
        "processes on this machine, each with an engine and a GPU; auto: all its GPUs, or one process",
        PROCESSES,
        low=1,
        choices=("auto",),
    )
    device: str = key("auto", "device; auto: a GPU where there is one", choices=DEVICES, spellings=GPU)
    seed: int = key(1, "seed of sampling", WORKER, low=0)


@dataclass
class GenerationConfig:
    """Every setting of `burnish generate`."""

    data: GenerationDataConfig = section(GenerationDataConfig)
    model: GenerationModelConfig = section(GenerationModelConfig, readers={"path": READER, "tokenizer_path": READER})
    rollout: GenerationRolloutConfig = section(
        GenerationRolloutConfig, readers=dict.fromkeys(("dtype", "timeout"), WORKER)
    )
    trainer: GenerationTrainerConfig = section(GenerationTrainerConfig)
    do_search: bool = key(False, "rows without agent_name use search_agent", "config/finalise.py")
    max_turns: int = key(10, "searches per question", WORKER, low=0)
    retriever: RetrieverConfig = section(RetrieverConfig)
    actor: dict[str, Any] = key({}, "how a policy is updated", inert=NOT_TRAINED)
    ray_init: dict[str, Any] = key({}, "how Ray is started", inert=NO_RAY)


@dataclass
class EvalDataConfig(Keys, reader=EVALUATION):
    """The file of responses, and which column is which."""

    path: str = key(None, "rows with responses: parquet, json or jsonl (also gzipped)", path=True)
    prompt_key: str = key("prompt", "column with the prompt")
    response_key: str = key("responses", "column with the responses: a list of texts, or one")
    data_source_key: str = key("data_source", "column that chooses the scorer")
    reward_model_key: str = key("reward_model", "column with the ground truth: in an object as `ground_truth`, or bare")
    output_path: str | None = key(
        None, "JSON file for the metrics; null: <path without its extension>.eval.json", path=True
    )
    scored_path: str | None = key(
        None, "parquet file for the rows with the score of each response; null: none", path=True
    )


@dataclass
class EvalConfig:
    """Every setting of `burnish eval`."""

    data: EvalDataConfig = section(EvalDataConfig)
    custom_reward_function: CustomRewardFunctionConfig = section(CustomRewardFunctionConfig)
    reward_model: RuleConfig = section(RuleConfig)
    reward: RewardConfig = section(RewardConfig, readers={"on_error": EVALUATION, "max_failure_ratio": EVALUATION})
    ray_init: dict[str, Any] = key({}, "how Ray is started", inert=NO_RAY)
