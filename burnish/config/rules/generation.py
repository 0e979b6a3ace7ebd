"""Generation: a file to write that is not the one that is read, lengths that fit, and sampling that means something."""

import os

from burnish.config.generation import GenerationConfig
from burnish.config.rules.given import Given
from burnish.errors import ConfigError


def files(config: GenerationConfig, given: Given) -> None:
    """The output is a parquet file of its own."""
    data = config.data
    if not data.output_path.endswith(".parquet"):
        raise ConfigError(f"data.output_path={data.output_path}: the output is a parquet file; end it with .parquet")
    if os.path.realpath(data.output_path) == os.path.realpath(data.path):
        raise ConfigError(
            f"data.output_path={data.output_path} is the file of data.path, which is only read; name another file"
        )


def lengths(config: GenerationConfig, given: Given) -> None:
    """Prompt and response together fit what the engine is told to hold."""
    rollout = config.rollout
    longest = rollout.prompt_length + rollout.response_length
    if rollout.max_model_len is not None and rollout.max_model_len < longest:
        raise ConfigError(
            f"rollout.max_model_len={rollout.max_model_len} is less than rollout.prompt_length={rollout.prompt_length} "
            f"+ rollout.response_length={rollout.response_length} = {longest}; raise it, or lower one of them"
        )


def sampling(config: GenerationConfig, given: Given) -> None:
    """Temperature 0 and `do_sample=false` both take the likeliest token, of which there is one response."""
    rollout, n = config.rollout, config.data.n_samples
    rollout.top_k = rollout.top_k or -1
    if rollout.do_sample and rollout.temperature == 0:
        if "rollout.do_sample" in given:
            raise ConfigError("rollout.temperature=0 with rollout.do_sample=true: sampling needs more than 0; drop one")
        rollout.do_sample = False
        given.say("rollout.do_sample=false, because rollout.temperature=0")
    if rollout.do_sample:
        return
    if n > 1:
        raise ConfigError(
            f"data.n_samples={n} gives equal responses without sampling; set data.n_samples=1, or sample with "
            "rollout.do_sample=true and a rollout.temperature of more than 0"
        )
    chosen = {"temperature": rollout.temperature > 0, "top_p": rollout.top_p < 1, "top_k": rollout.top_k > 0}
    chosen["min_p"] = rollout.min_p > 0
    if unused := [f"rollout.{name}" for name, is_on in chosen.items() if is_on and f"rollout.{name}" in given]:
        given.say(f"no effect: {', '.join(unused)} (rollout.do_sample=false takes the likeliest token)")
