"""`rollout`: the engine that generates responses, how it samples, and the agent loop around it.

`BaseRolloutConfig` has what holds wherever responses are made; `RolloutConfig`, which is `actor_rollout_ref.rollout`,
adds what only training asks for.
"""

from dataclasses import dataclass
from typing import Any

from burnish.config.key import key, section
from burnish.config.model import DTYPE_SPELLINGS, DTYPES

ACTOR = "workers/actor_rollout_ref.py"
ROLLOUTS = "workers/rollouts.py"
EXPERIENCE = "trainer/experience.py"
VLLM = "rollout/vllm/arguments.py"
IN_PROCESS, NATIVE = "rollout/in_process.py", "rollout/native/engine.py"
TOOL_LOOP, ENVIRONMENT = "agents/loops/tool.py", "agents/environment.py"
CALL_FORMATS = (
    "hermes", "json", "llama3_json", "qwen3_coder", "react", "gpt-oss", "glm", "seed", "minimax", "kimi",
    "deepseek_v4", "gemma4",
)  # fmt: skip


@dataclass
class ValKwargs:
    """Sampling in validation."""

    n: int = key(1, "responses per validation prompt", reader="trainer/validate.py", low=1)
    temperature: float = key(0.0, "temperature; 0: the most likely token", reader="trainer/validate.py", low=0)
    top_p: float = key(
        1.0, "smallest set of tokens with this probability", reader="trainer/validate.py", above=0, high=1
    )
    top_k: int = key(-1, "most likely tokens sampled from; -1: all", reader="trainer/validate.py", low=-1)
    do_sample: bool = key(False, "sample; false: the most likely token", reader="trainer/validate.py")


@dataclass
class MultiTurnConfig:
    """Tools and further turns within one response."""

    enable: bool = key(False, "rows without agent_name use tool_agent", reader="config/rules/agents.py")
    max_assistant_turns: int | None = key(
        None, "turns of the policy at most; null: as many as the response has room for", reader=TOOL_LOOP, low=1
    )
    max_user_turns: int | None = key(
        None, "answers of an interaction at most; null: as many as there is room for", reader=TOOL_LOOP, low=0
    )
    max_tool_calls: int | None = key(
        None, "tool calls per trajectory at most; further ones are refused", reader=TOOL_LOOP, low=0
    )
    max_parallel_calls: int = key(
        1,
        "tool calls of one turn at most, which run at the same time; further ones are refused",
        reader=TOOL_LOOP,
        low=1,
    )
    tool_timeout: float = key(60.0, "seconds for one call of a tool or an interaction", reader=TOOL_LOOP, above=0)
    max_tool_response_length: int = key(256, "tokens of one tool response", reader=TOOL_LOOP, low=1)
    tool_response_truncate_side: str = key(
        "middle", "where a longer one is cut", reader=TOOL_LOOP, choices=("left", "middle", "right")
    )
    tool_config_path: str | None = key(None, "YAML file with the tools", reader=ENVIRONMENT, path=True)
    interaction_config_path: str | None = key(None, "YAML file with the interactions", reader=ENVIRONMENT, path=True)
    format: str = key("hermes", "how the model writes a call", reader=ENVIRONMENT, choices=CALL_FORMATS)
    rewards: str = key(
        "trajectory",
        "what is trained: the score of the whole response; the rewards that tools and interactions gave its turns; or "
        "both, added up",
        reader=TOOL_LOOP,
        choices=("trajectory", "turn", "both"),
    )


@dataclass
class AgentConfig:
    """The loop that turns a prompt into a trajectory."""

    num_workers: int | None = key(
        None, "processes that run agent loops", inert="one event loop runs all trajectories of a process"
    )
    default_agent_loop: str = key("single_turn_agent", "loop for rows without agent_name", reader="agents/runner.py")
    agent_loop_config_path: str | None = key(
        None, "YAML file that names a user's own loops", reader="agents/user_loops.py", path=True
    )


@dataclass
class TrainingAgentConfig(AgentConfig):
    """The loop that turns a prompt into a trajectory, and the processes that run it."""

    num_workers: int | None = key(
        None,
        "Ray: processes that run agent loops; null: as many as the policy has, at most 8",
        reader="config/placement.py",
        low=1,
    )


def engine_key(reader: str) -> Any:
    """The key that chooses an engine."""
    return key("native", "rollout engine", reader=reader, choices="burnish.rollout:ENGINES")


@dataclass
class BaseRolloutConfig:
    """Engine, sampling and agent loop."""

    name: str = engine_key(reader=ACTOR)
    mode: str = key(
        "async",
        "async or sync generation",
        choices=("async", "sync"),
        inert="every engine serves each trajectory by itself",
    )
    temperature: float = key(1.0, "sampling temperature", reader=EXPERIENCE, low=0)
    top_k: int = key(-1, "most likely tokens sampled from; -1: all", reader=EXPERIENCE, low=-1)
    top_p: float = key(1.0, "smallest set of tokens with this probability", reader=EXPERIENCE, above=0, high=1)
    min_p: float = key(0.0, "leave out tokens below this share of the likeliest", reader=EXPERIENCE, low=0, high=1)
    do_sample: bool = key(True, "sample; false: the most likely token", reader=EXPERIENCE)
    prompt_length: int = key(None, "another name for data.max_prompt_length", reader="config/rules/sampling.py", low=1)
    response_length: int = key(None, "another name for data.max_response_length", reader=EXPERIENCE, low=1)
    dtype: str = key(
        "auto",
        "type of the weights that generate; auto: those that are trained",
        reader=IN_PROCESS,
        choices=DTYPES,
        spellings=DTYPE_SPELLINGS,
    )
    gpu_memory_utilization: float = key(
        0.5,
        "share of the device's memory for the KV pool, at most (vllm: for all it has)",
        reader=NATIVE,
        above=0,
        high=1,
    )
    ignore_eos: bool = key(False, "go on past the end-of-sequence token", reader=EXPERIENCE)
    enforce_eager: bool = key(False, "no CUDA graphs", reader=NATIVE)
    free_cache_engine: bool = key(True, "give the KV pool back while training", reader="workers/replica.py")
    load_format: str = key(
        "auto", "where the engine's weights come from", inert="engines generate with the very weights that are loaded"
    )
    tensor_model_parallel_size: int = key(
        1, "devices that share one engine; more than 1: vllm only", low=1, reader=VLLM
    )
    max_num_batched_tokens: int = key(8192, "prompt tokens read at a time", reader=NATIVE, low=1)
    max_num_seqs: int = key(1024, "sequences generated at the same time", reader=NATIVE, low=1)
    max_model_len: int | None = key(
        None, "tokens of prompt and response at most; null: the model's context", reader=NATIVE, low=1
    )
    enable_chunked_prefill: bool = key(True, "read long prompts in pieces", reader=NATIVE)
    enable_prefix_caching: bool = key(True, "keep the KV of prompts for others that begin alike", reader=NATIVE)
    stop: list[str] = key([], "strings that end a response", reader=EXPERIENCE)
    stop_token_ids: list[int] = key([], "tokens that end a response, besides the model's own", reader=EXPERIENCE)
    timeout: float | None = key(
        None, "seconds for all trajectories of one batch; null: no limit", reader=ROLLOUTS, above=0
    )
    multi_turn: MultiTurnConfig = section(MultiTurnConfig)
    agent: AgentConfig = section(AgentConfig)
    engine_kwargs: dict[str, dict[str, Any]] = key(
        {},
        "further arguments for the program of an engine, by its name, as in engine_kwargs.vllm.block_size=16",
        reader=VLLM,
    )
    disable_log_stats: bool = key(True, "no statistics of the engine in its log", inert="engines log none")


@dataclass
class RolloutConfig(BaseRolloutConfig):
    """Engine, sampling and agent loop."""

    n: int = key(
        None,
        "responses per prompt; null: 4 where the estimator compares groups, else 1",
        reader=EXPERIENCE,
        low=1,
    )
    n_agent: int = key(None, "another name for n; must equal it", reader="config/rules/batch.py", low=1)
    calculate_log_probs: bool = key(True, "keep the log-probs of sampled tokens", reader=ROLLOUTS)
    log_prob_micro_batch_size_per_gpu: int | None = key(
        None, "sequences per forward pass of the old log-probs; null: planned from memory", reader=ACTOR, low=1
    )
    log_prob_use_dynamic_bsz: bool = key(None, "cut by tokens; null: as the actor", reader=ACTOR)
    log_prob_max_token_len_per_gpu: int = key(None, "tokens per micro-batch; null: as the actor", reader=ACTOR, low=1)
    agent: TrainingAgentConfig = section(TrainingAgentConfig)
    val_kwargs: ValKwargs = section(ValKwargs)
