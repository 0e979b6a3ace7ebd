"""`reward_model`, `custom_reward_function`, `reward`, `reward_manager`: how responses are scored."""

from dataclasses import dataclass
from typing import Any

from burnish.config.actor import strategy
from burnish.config.fsdp import NOT_TRAINED, FSDPConfig
from burnish.config.key import Keys, key, section
from burnish.config.model import ModelConfig
from burnish.config.profiler import ProfilerConfig

SCORING = "rewards/scoring.py"
MANAGERS = "rewards/managers/__init__.py"
REWARD_MODEL = "workers/reward_model.py"
MIXING, FAILURES = "trainer/reward_model.py", "trainer/score.py"
BACKENDS = LOCAL, FUSION = ("local", "sandbox_fusion")


@dataclass
class RewardModelPathConfig(ModelConfig):
    """The reward model: a sequence or token classifier with one label."""

    input_tokenizer: str | None = key(
        None, "tokenizer that the responses are decoded with; null: the policy's", REWARD_MODEL, path=True
    )
    fsdp_config: FSDPConfig = section(FSDPConfig, readers={"param_offload": REWARD_MODEL} | NOT_TRAINED)


@dataclass
class SandboxConfig(Keys, reader="sandbox/__init__.py"):
    """Where model-written code runs, and what it may use."""

    backend: str = key(
        None, "run programs here or on a SandboxFusion server; null: on the server if url is set", choices=BACKENDS
    )
    url: str | None = key(None, "address of the server, e.g. http://host:8080/run_code")
    max_concurrent: int = key(64, "programs that run at the same time", SCORING, low=1)
    memory_limit_mb: int = key(1024, "memory limit of one program and everything it starts", low=64)
    timeout: float = key(10.0, "time limit of one program, in seconds", above=0)
    allow_unsafe: bool = key(False, "if this machine permits no isolation, run programs without it, with limits only")


@dataclass
class RuleConfig(Keys, reader=SCORING):
    """Settings of the built-in scorers."""

    sandbox: SandboxConfig = section(SandboxConfig)
    structure_format_score: float = key(0.0, "search agent: score of a wrong answer in the right format")
    final_format_score: float = key(0.0, "search agent: score of a wrong answer in a wrong format")
    retrieval_score: float = key(
        0.0, "search agent: bonus for a wrong answer in the right format whose search found the right text"
    )


@dataclass
class RewardModelConfig(RuleConfig, reader=REWARD_MODEL):
    """The reward manager, the rules, and the reward model, if there is one."""

    enable: bool = key(
        False,
        "score rows of style model or both with a model; all rows, if no row to train on has one of these",
        "trainer/setup.py",
    )
    model: RewardModelPathConfig = section(
        RewardModelPathConfig, readers={"path": REWARD_MODEL, "tokenizer_path": REWARD_MODEL}
    )
    micro_batch_size_per_gpu: int | None = key(None, "conversations per forward pass; null: planned from memory", low=1)
    use_dynamic_bsz: bool = key(None, "split micro-batches by tokens; null: as the actor")
    forward_max_token_len_per_gpu: int = key(None, "tokens per micro-batch; null: the actor's", low=1)
    max_length: int | None = key(
        None, "longest conversation that is scored, in tokens; a longer one loses its start. null: the model's context",
        REWARD_MODEL, low=1
    )  # fmt: skip
    reward_manager: str = key(
        "naive",
        "how scores are gathered: naive, batch, prime, dapo, a registered name, or an import path package.module:Class",
        MANAGERS,
        import_path=True,
    )
    strategy: str = strategy()
    rule_weight: float = key(1.0, "weight of the rule in rows of style both", MIXING)
    model_weight: float = key(1.0, "weight of the model in rows of style both", MIXING)
    launch_reward_fn_async: bool = key(
        False,
        "score while other work continues",
        inert="rules score each trajectory as soon as it is finished; a reward model scores the whole batch",
    )
    profiler: ProfilerConfig = section(ProfilerConfig)


@dataclass
class CustomRewardFunctionConfig(Keys, reader=SCORING):
    """A user's own compute_score, or several."""

    path: str | None = key(None, "Python file or module with the function", path=True)
    name: str = key("compute_score", "name of the function")
    reward_kwargs: dict[str, Any] = key({}, "further arguments for the function")
    functions: dict[str, Any] = key(
        {}, "several functions by name, each with path, name, weight and reward_kwargs: the score is their weighted sum"
    )


@dataclass
class NamedFunctionConfig(Keys, reader=SCORING):
    """One of `custom_reward_function.functions`."""

    path: str = key(None, "Python file or module; null: custom_reward_function.path", path=True)
    name: str = key(None, "name of the function; null: the name it is given here")
    weight: float = key(1.0, "its weight in the sum; 0: it only has a curve", low=-1e9, high=1e9)
    reward_kwargs: dict[str, Any] = key({}, "further arguments for the function")


@dataclass
class RewardConfig(Keys, reader=SCORING):
    """What scoring may cost and how it may fail."""

    timeout: float = key(None, "seconds for one score; null: 30, with the prime manager 300", above=0)
    retries: int = key(1, "further tries after a failure", low=0)
    on_error: str = key(
        "drop",
        "what happens to a sample that cannot be scored: it is dropped or gets 0",
        FAILURES,
        choices=("drop", "zero"),
    )
    max_failure_ratio: float = key(
        0.05, "share of failed samples in a step that stops the run", FAILURES, low=0, high=1
    )
    num_workers: int = key(None, "processes that score; null: 2, with the prime manager up to 64", low=1)


@dataclass
class RewardManagerModuleConfig(Keys, reader=MANAGERS):
    """A user's own reward manager."""

    path: str | None = key(None, "Python file or module with the class", path=True)
    name: str | None = key(None, "name of the class; null: reward_manager.name")


@dataclass
class RewardManagerConfig(Keys, reader=MANAGERS):
    """Another way to choose the reward manager."""

    source: str = key(
        "register", "a registered manager by name, or a class from a file or module", choices=("register", "importlib")
    )
    name: str | None = key(None, "name of the manager; null: reward_model.reward_manager")
    module: RewardManagerModuleConfig = section(RewardManagerModuleConfig)
