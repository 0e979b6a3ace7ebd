"""`reward_model`, `custom_reward_function`, `reward`, `reward_manager`: how responses are scored."""

from dataclasses import dataclass
from typing import Any

from burnish.config.actor import strategy
from burnish.config.fsdp import NOT_TRAINED, FSDPConfig
from burnish.config.key import key, section
from burnish.config.model import ModelConfig

SCORING = "rewards/scoring.py"
MANAGERS = "rewards/managers/__init__.py"
REWARD_MODEL, CONVERSATIONS = "workers/reward_model.py", "workers/conversations.py"
MIXING = "trainer/reward_model.py"
SANDBOX = "sandbox/__init__.py"
SANDBOX_BACKENDS = LOCAL, FUSION = ("local", "sandbox_fusion")


@dataclass
class RewardModelPathConfig(ModelConfig):
    """The reward model: a sequence or token classifier with one label."""

    input_tokenizer: str | None = key(
        None, "tokenizer that the responses are decoded with; null: the policy's", reader=CONVERSATIONS, path=True
    )
    fsdp_config: FSDPConfig = section(FSDPConfig, readers={"param_offload": REWARD_MODEL} | NOT_TRAINED)


@dataclass
class SandboxConfig:
    """Where model-written code runs, and what it may use."""

    backend: str = key(
        None, "here, or on a SandboxFusion server; null: there where url is set", reader=SANDBOX,
        choices=SANDBOX_BACKENDS,
    )  # fmt: skip
    url: str | None = key(None, "where the server takes programs, as http://host:8080/run_code", reader=SANDBOX)
    max_concurrent: int = key(64, "programs at a time", reader=SCORING, low=1)
    memory_limit_mb: int = key(1024, "memory of one program, with everything it starts", reader=SANDBOX, low=64)
    timeout: float = key(10.0, "seconds of one program", reader=SANDBOX, above=0)
    allow_unsafe: bool = key(
        False, "where this machine permits no isolation: run programs without it, under limits alone", reader=SANDBOX
    )


@dataclass
class RuleConfig:
    """What the built-in scorers can be told."""

    sandbox: SandboxConfig = section(SandboxConfig)
    structure_format_score: float = key(0.0, "search answers: score of a well-formed wrong one", reader=SCORING)
    final_format_score: float = key(0.0, "search answers: score of an ill-formed wrong one", reader=SCORING)
    retrieval_score: float = key(
        0.0, "search answers: added to a well-formed wrong one that found the right text", reader=SCORING
    )


@dataclass
class RewardModelConfig(RuleConfig):
    """The reward manager, the rules, and the reward model beside them where there is one."""

    enable: bool = key(False, "score rows of style model or both with a model", reader="trainer/setup.py")
    model: RewardModelPathConfig = section(
        RewardModelPathConfig, readers={"path": REWARD_MODEL, "tokenizer_path": CONVERSATIONS}
    )
    micro_batch_size_per_gpu: int | None = key(
        None, "conversations scored at a time; null: planned from memory", reader=REWARD_MODEL, low=1
    )
    use_dynamic_bsz: bool = key(None, "cut micro-batches by tokens; null: as the actor", reader=REWARD_MODEL)
    forward_max_token_len_per_gpu: int = key(
        None, "tokens per micro-batch; null: the actor's", reader=REWARD_MODEL, low=1
    )
    max_length: int | None = key(
        None, "tokens of a scored conversation; a longer one loses its start. null: the model's context",
        reader=CONVERSATIONS, low=1,
    )  # fmt: skip
    reward_manager: str = key(
        "naive",
        "how scores are gathered, or an import path package.module:Class",
        reader=MANAGERS,
        choices=("naive", "batch", "prime", "dapo"),
        import_path=True,
    )
    strategy: str = strategy()
    rule_weight: float = key(1.0, "weight of the rule in rows of style both", reader=MIXING)
    model_weight: float = key(1.0, "weight of the model in rows of style both", reader=MIXING)
    launch_reward_fn_async: bool = key(
        False,
        "score while other work goes on",
        inert="rules score each trajectory as soon as it is finished, and a reward model reads the batch when all are",
    )


@dataclass
class CustomRewardFunctionConfig:
    """A user's own compute_score."""

    path: str | None = key(None, "Python file or module with the function", reader=SCORING, path=True)
    name: str = key("compute_score", "name of the function", reader=SCORING)
    reward_kwargs: dict[str, Any] = key({}, "further arguments for the function", reader=SCORING)


@dataclass
class RewardConfig:
    """What scoring may cost and how it may fail."""

    timeout: float = key(None, "seconds for one score; null: 30, with the prime manager 300", reader=SCORING, above=0)
    retries: int = key(1, "further tries after a failure", reader=SCORING, low=0)
    on_error: str = key(
        "drop",
        "a sample that cannot be scored is dropped or gets 0",
        reader="trainer/score.py",
        choices=("drop", "zero"),
    )
    max_failure_ratio: float = key(
        0.05, "share of failed samples in a step that stops the run", reader="trainer/score.py", low=0, high=1
    )
    num_workers: int = key(
        None, "processes that score; null: 2, with the prime manager up to 64", reader=SCORING, low=1
    )


@dataclass
class RewardManagerModuleConfig:
    """A user's own reward manager."""

    path: str | None = key(None, "Python file or module with the class", reader=MANAGERS, path=True)
    name: str | None = key(None, "name of the class; null: reward_manager.name", reader=MANAGERS)


@dataclass
class RewardManagerConfig:
    """Another way to choose the reward manager."""

    source: str = key(
        "register", "by its name here, or from a file or module", reader=MANAGERS, choices=("register", "importlib")
    )
    name: str | None = key(None, "name of the manager; null: reward_model.reward_manager", reader=MANAGERS)
    module: RewardManagerModuleConfig = section(RewardManagerModuleConfig)
