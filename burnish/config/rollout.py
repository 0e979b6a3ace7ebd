"""`rollout`: the engine that generates responses, how it samples, and the agent loop around it. `RolloutConfig`, which
is `actor_rollout_ref.rollout`, adds what only training asks for."""

from dataclasses import dataclass
from typing import Any

from burnish.config.key import Keys, key, section
from burnish.config.model import dtype_key
from burnish.config.profiler import ProfilerConfig

ACTOR = "workers/actor_rollout_ref.py"
ROLLOUTS = "workers/rollouts.py"
EXPERIENCE = "trainer/experience.py"
VLLM = "rollout/vllm/engine.py"
IN_PROCESS, NATIVE = "rollout/in_process.py", "rollout/native/engine.py"
TOOL_LOOP, ENVIRONMENT = "agents/loops/tool.py", "agents/environment.py"
CALL_FORMATS = (
    "hermes", "json", "llama3_json", "qwen3_coder", "react", "gpt-oss", "glm", "seed", "minimax", "kimi",
    "deepseek_v4", "gemma4",
)  # fmt: skip

LOOPS = ("single_turn_agent", "tool_agent", "react_agent", "search_agent")  # the built-in ones, as agents lists them


@dataclass
class ValKwargs(Keys, reader="trainer/validate.py"):
    """Sampling in validation."""

    n: int = key(1, "responses per validation prompt", low=1)
    temperature: float = key(0.0, "sampling temperature; 0: the most likely token", low=0)
    top_p: float = key(1.0, "sample from the smallest set of tokens with this total probability", above=0, high=1)
    top_k: int = key(-1, "sample from this many of the most likely tokens; -1: all", low=-1)
    do_sample: bool = key(False, "sample; false: the most likely token")


@dataclass
class MultiTurnConfig(Keys, reader="agents/loops/tool.py"):
    """Tools and further turns within one response."""

    enable: bool = key(False, "rows without agent_name use tool_agent", "config/rules/sampling.py")
    max_assistant_turns: int | None = key(
        None, "most turns of the policy; null: as many as fit into the response", low=1
    )
    max_user_turns: int | None = key(None, "most replies of an interaction; null: as many as fit", low=0)
    max_tool_calls: int | None = key(None, "most tool calls per trajectory; further ones are refused", low=0)
    max_parallel_calls: int = key(
        1, "most tool calls of one turn, which run in parallel; further ones are refused", low=1
    )
    tool_timeout: float = key(60.0, "seconds for one call of a tool or an interaction", above=0)
    max_tool_response_length: int = key(256, "longest tool response, in tokens", low=1)
    tool_response_truncate_side: str = key(
        "middle", "which part of a longer tool response is cut out", choices=("left", "middle", "right")
    )
    tool_config_path: str | None = key(None, "YAML file with the tools", ENVIRONMENT, path=True)
    function_tool_path: str | None = key(
        None, "Python file or module with functions that are tools, next to those of tool_config_path", ENVIRONMENT,
        path=True,
    )  # fmt: skip
    interaction_config_path: str | None = key(None, "YAML file with the interactions", ENVIRONMENT, path=True)
    format: str = key("hermes", "format in which the model writes a tool call", ENVIRONMENT, choices=CALL_FORMATS)
    rewards: str = key(
        "trajectory",
        "what is trained: the score of the whole response; the rewards that tools and interactions gave its turns; or "
        "both, added up",
        choices=("trajectory", "turn", "both"),
    )


@dataclass
class AgentConfig:
    """The loop that turns a prompt into a trajectory."""

    num_workers: int | None = key(
        None, "processes that run agent loops", inert="one event loop runs all trajectories of a process"
    )
    default_agent_loop: str = key("single_turn_agent", "loop for rows without agent_name", "agents/runner.py")
    agent_loop_config_path: str | None = key(None, "YAML file with custom agent loops", "agents/base.py", path=True)


@dataclass
class TrainingAgentConfig(AgentConfig):
    """The loop that turns a prompt into a trajectory, and the processes that run it."""

    num_workers: int | None = key(
        None,
        "Ray: processes that run agent loops; null: as many as the policy has, at most 8",
        "config/placement.py",
        low=1,
    )


@dataclass
class RetrieverConfig(Keys, reader="agents/environment.py"):
    """Where documents come from."""

    url: str = key("http://127.0.0.1:8000/retrieve", "address of the retrieval server")
    topk: int = key(3, "documents per query", low=1, high=100)
    timeout: float = key(10.0, "seconds for one request", above=0)
    retries: int = key(3, "further tries after a failure", low=0)
    cache: bool = key(True, "cache the results of queries")


def engine_key(reader: str) -> Any:
    """The key that chooses an engine."""
    return key("native", "rollout engine", reader, choices="burnish.rollout:ENGINES")


@dataclass
class BaseRolloutConfig(Keys, reader=EXPERIENCE):
    """Engine, sampling and agent loop."""

    name: str = engine_key(reader=ACTOR)
    mode: str = key(
        "async",
        "async or sync generation",
        choices=("async", "sync"),
        inert="every engine serves each trajectory separately",
    )
    temperature: float = key(1.0, "sampling temperature", low=0)
    top_k: int = key(-1, "sample from this many of the most likely tokens; -1: all", low=-1)
    top_p: float = key(1.0, "sample from the smallest set of tokens with this total probability", above=0, high=1)
    min_p: float = key(0.0, "exclude tokens less likely than this share of the most likely one", low=0, high=1)
    do_sample: bool = key(True, "sample; false: the most likely token")
    prompt_length: int = key(None, "another name for data.max_prompt_length", "config/rules/sampling.py", low=1)
    response_length: int = key(None, "another name for data.max_response_length", low=1)
    dtype: str = dtype_key("type of the rollout engine's weights; auto: that of the trained weights", IN_PROCESS)
    gpu_memory_utilization: float = key(
        0.5,
        "largest share of the device's memory for the KV pool (vllm: for everything it holds)",
        NATIVE,
        above=0,
        high=1,
    )
    ignore_eos: bool = key(False, "continue past the end-of-sequence token")
    enforce_eager: bool = key(False, "do not use CUDA graphs", NATIVE)
    free_cache_engine: bool = key(True, "free the KV pool while training", "workers/replica.py")
    load_format: str = key(
        "auto", "where the engine's weights come from", inert="engines generate with the weights that are trained"
    )
    tensor_model_parallel_size: int = key(
        1, "devices that share one engine; more than 1 only with vllm", low=1, reader=VLLM
    )
    max_num_batched_tokens: int = key(8192, "prompt tokens processed at a time", NATIVE, low=1)
    max_num_seqs: int = key(1024, "sequences generated at the same time", NATIVE, low=1)
    max_model_len: int | None = key(
        None, "longest prompt and response together, in tokens; null: the model's context", NATIVE, low=1
    )
    enable_chunked_prefill: bool = key(True, "process long prompts in chunks", NATIVE)
    enable_prefix_caching: bool = key(True, "reuse the KV cache of prompts that begin with the same tokens", NATIVE)
    stop: list[str] = key([], "strings that end a response")
    stop_token_ids: list[int] = key([], "token ids that end a response, in addition to the model's own")
    timeout: float | None = key(None, "seconds for all trajectories of one batch; null: no limit", ROLLOUTS, above=0)
    trajectory_timeout: float | None = key(
        None, "seconds for one trajectory, from its start; a longer one is dropped. null: no limit", "agents/runner.py",
        above=0,
    )  # fmt: skip
    multi_turn: MultiTurnConfig = section(MultiTurnConfig)
    agent: AgentConfig = section(AgentConfig)
    engine_kwargs: dict[str, dict[str, Any]] = key(
        {}, "further arguments for the program of an engine, by its name, as in engine_kwargs.vllm.block_size=16", VLLM
    )
    disable_log_stats: bool = key(True, "do not log statistics of the engine", inert="engines log no statistics")


@dataclass
class RolloutConfig(BaseRolloutConfig, reader=ACTOR):
    """Engine, sampling and agent loop."""

    n: int = key(None, "responses per prompt; null: 4 where the estimator compares groups, else 1", EXPERIENCE, low=1)
    n_agent: int = key(None, "another name for n; must equal it", "config/rules/batch.py", low=1)
    calculate_log_probs: bool = key(True, "keep the log-probs of sampled tokens", ROLLOUTS)
    log_prob_micro_batch_size_per_gpu: int | None = key(
        None, "sequences per forward pass of the old log-probs; null: planned from memory", low=1
    )
    log_prob_use_dynamic_bsz: bool = key(None, "split micro-batches by tokens; null: as the actor")
    log_prob_max_token_len_per_gpu: int = key(None, "tokens per micro-batch; null: as the actor", low=1)
    agent: TrainingAgentConfig = section(TrainingAgentConfig)
    val_kwargs: ValKwargs = section(ValKwargs)
    profiler: ProfilerConfig = section(ProfilerConfig)
