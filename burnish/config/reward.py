"""`reward_model`, `custom_reward_function`, `reward`, `reward_manager`: how responses are scored."""

from dataclasses import dataclass
from typing import Any

from burnish.config.key import key, section

SCORING = "rewards/scoring.py"
MANAGERS = "rewards/managers/__init__.py"
REWARD_MODELS = "reward models"
SANDBOX = "scoring code in the sandbox"
SEARCH_FORMAT = "format rewards of the search agent"
LATER_MANAGERS = ("batch", "prime")


@dataclass
class RewardModelPathConfig:
    """The reward model's folder."""

    path: str | None = key(None, "reward model folder or hub id", path=True)
    input_tokenizer: str | None = key(None, "tokenizer of the policy, where it differs", path=True)
    trust_remote_code: bool = key(False, "run Python code that comes with the model")
    external_lib: str | None = key(None, "module imported before the model is loaded")
    use_remove_padding: bool = key(True, "score without padding")
    fsdp_config: dict[str, Any] = key({}, "sharding of the reward model")


@dataclass
class SandboxConfig:
    """Where model-written code runs."""

    backend: str = key("local", "local, or a SandboxFusion server")
    url: str | None = key(None, "address of the server")
    max_concurrent: int = key(64, "programs at a time")
    memory_limit_mb: int = key(1024, "memory of one program")
    timeout: float = key(10.0, "seconds of one program")
    allow_unsafe: bool = key(False, "run without isolation where the host allows none")


@dataclass
class RewardModelConfig:
    """The reward manager, and the reward model behind it where there is one."""

    enable: bool = key(False, "score with a model", later=REWARD_MODELS)
    model: RewardModelPathConfig = section(RewardModelPathConfig, later=REWARD_MODELS)
    micro_batch_size_per_gpu: int | None = key(None, "sequences scored at a time", later=REWARD_MODELS)
    max_length: int | None = key(None, "tokens of a scored conversation at most", later=REWARD_MODELS)
    reward_manager: str = key(
        "naive",
        "how scores are gathered, or an import path package.module:Class",
        reader=MANAGERS,
        choices=("naive", "dapo", *LATER_MANAGERS),
        import_path=True,
        later={name: f"the reward manager {name}" for name in LATER_MANAGERS},
        instead="The managers that are there are naive and dapo",
    )
    strategy: str = key("fsdp", "how the reward model is spread over devices", later=REWARD_MODELS)
    sandbox: SandboxConfig = section(SandboxConfig, later=SANDBOX)
    rule_weight: float = key(1.0, "weight of the rule in rows scored by both", later=REWARD_MODELS)
    model_weight: float = key(1.0, "weight of the model in rows scored by both", later=REWARD_MODELS)
    launch_reward_fn_async: bool = key(
        False, "score while other work goes on", inert="every trajectory is scored as soon as it is finished"
    )
    structure_format_score: float = key(0.0, "score of a well-formed search", later=SEARCH_FORMAT)
    final_format_score: float = key(0.0, "score of an ill-formed one", later=SEARCH_FORMAT)
    retrieval_score: float = key(0.0, "score of having found the answer's text", later=SEARCH_FORMAT)


@dataclass
class CustomRewardFunctionConfig:
    """A user's own compute_score."""

    path: str | None = key(None, "Python file or module with the function", reader=SCORING, path=True)
    name: str = key("compute_score", "name of the function", reader=SCORING)
    reward_kwargs: dict[str, Any] = key({}, "further arguments for the function", reader=SCORING)


@dataclass
class RewardConfig:
    """What scoring may cost and how it may fail."""

    timeout: float = key(30.0, "seconds for one score", reader=SCORING, above=0)
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
    num_workers: int = key(2, "processes that score", reader=SCORING, low=1)


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
