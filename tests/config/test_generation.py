"""The keys of `burnish generate`: what is filled in, what does not go together, and what came from elsewhere."""

import pytest

from burnish.config.finalise import finalise_generation
from burnish.config.generation import GenerationConfig
from burnish.config.key import keys_of
from burnish.config.load import GENERATION, load, run
from burnish.config.ppo import PPOConfig
from burnish.errors import ConfigError, NotAvailable

REQUIRED = ["data.path=test.parquet", "data.output_path=out.parquet", "model.path=m"]


def finish(*keys: str) -> tuple[GenerationConfig, list[str]]:
    given = {key.partition("=")[0] for key in keys}
    words = [word for word in REQUIRED if word.partition("=")[0] not in given]
    (job,) = load([*words, *keys], GENERATION)
    return job.config, [*job.notices, *finalise_generation(job.config, job.explicit)]


def refused(*keys: str) -> str:
    with pytest.raises(ConfigError) as error:
        finish(*keys)
    return str(error.value)


def test_the_command_of_the_docs():
    config, notices = finish(
        "data.n_samples=5", "data.batch_size=128", "model.path=~/models/m", "rollout.temperature=1.0",
        "rollout.top_k=50", "rollout.top_p=0.7", "rollout.prompt_length=1536", "rollout.response_length=512",
    )  # fmt: skip
    assert notices == []
    assert not config.model.path.startswith("~") and config.model.path.endswith("/models/m")
    assert (config.rollout.prompt_length, config.rollout.response_length, config.rollout.top_k) == (1536, 512, 50)


def test_lengths_and_sampling_have_defaults():
    config, notices = finish()
    assert (config.rollout.prompt_length, config.rollout.response_length) == (512, 512)
    assert (config.rollout.temperature, config.rollout.top_k, config.rollout.top_p) == (1.0, -1, 1.0)
    assert config.rollout.do_sample and config.data.n_samples == 1 and notices == []


def test_missing_required_keys_are_named():
    with pytest.raises(ConfigError, match="data.path and data.output_path and model.path must be set, for example"):
        finalise_generation(GenerationConfig(), frozenset())
    assert "data.output_path must be set, for example data.output_path=out.parquet" in refused("data.output_path=null")


def test_output_is_a_separate_parquet_file(tmp_path, monkeypatch):
    assert "data.output_path=out.jsonl: the output is a parquet file" in refused("data.output_path=out.jsonl")
    assert "is the file of data.path" in refused("data.output_path=./test.parquet")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.parquet").symlink_to("test.parquet")
    assert "is the file of data.path" in refused("data.output_path=link.parquet")


def test_greedy_by_temperature_or_do_sample():
    config, notices = finish("rollout.temperature=0")
    assert not config.rollout.do_sample and notices == ["rollout.do_sample=false, because rollout.temperature=0"]
    assert "sampling needs more than 0" in refused("rollout.temperature=0", "rollout.do_sample=true")
    assert "data.n_samples=5 gives equal responses" in refused("data.n_samples=5", "rollout.do_sample=false")
    assert "data.n_samples=2 gives equal responses" in refused("data.n_samples=2", "rollout.temperature=0")
    _, notices = finish("rollout.do_sample=false", "rollout.top_p=0.9", "rollout.top_k=-1")
    assert notices == ["no effect: rollout.top_p (rollout.do_sample=false takes the likeliest token)"]


def test_training_keys_are_reported_as_without_effect():
    _, notices = finish("model.enable_gradient_checkpointing=true")
    assert notices == ["no effect: model.enable_gradient_checkpointing (there is no backward pass in burnish generate)"]


def test_top_k_of_0_is_off():
    assert finish("rollout.top_k=0")[0].rollout.top_k == -1


def test_a_context_that_is_too_short_for_the_lengths():
    said = refused("rollout.max_model_len=600")
    assert said.startswith("rollout.max_model_len=600 is less than rollout.prompt_length=512 + rollout.response_length")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rollout.n=5", "'rollout.n' is not supported: use data.n_samples"),
        ("rollout.log_prob_micro_batch_size=8", "the log-probs of what is sampled are always written"),
        ("rollout.calculate_log_probs=true", "remove the key"),
        ("rollout.val_kwargs.temperature=1", "sampling keys sit in rollout itself"),
        ("rollout.micro_batch_size=256", "use data.batch_size"),
        ("data.n_sample=3", "did you mean 'data.n_samples'?"),
        ("data.n_samples=0", "data.n_samples=0: must be an integer of at least 1"),
    ],
)
def test_keys_that_are_not_there(key, words):
    assert words in refused(key)


def test_an_engine_that_is_not_there_names_those_that_are():
    with pytest.raises(ConfigError, match=r"rollout.name=vllm needs the package vllm.*or use rollout.name=native"):
        finish("rollout.name=vllm")
    with pytest.raises(NotAvailable, match=r"several devices \(asked for by rollout.tensor_model_parallel_size=2\)"):
        finish("rollout.tensor_model_parallel_size=2")


def test_keys_that_the_hf_engine_ignores_are_reported():
    keys = ["rollout.enable_prefix_caching=false", "rollout.gpu_memory_utilization=0.9", "rollout.enforce_eager=true"]
    assert finish(*keys)[1] == []
    assert finish(*keys, "rollout.name=hf")[1] == [
        "no effect: rollout.gpu_memory_utilization, rollout.enable_prefix_caching (the hf engine keeps no KV pool)",
        "no effect: rollout.enforce_eager (the hf engine uses no CUDA graphs)",
    ]


@pytest.mark.parametrize("name", ["native", "hf"])
def test_nothing_is_given_back_where_nothing_is_trained(name):
    said = finish("rollout.free_cache_engine=false", f"rollout.name={name}")[1]
    assert said == ["no effect: rollout.free_cache_engine (nothing is trained in burnish generate)"]


def test_training_and_generation_share_the_keys_of_the_engine():
    ours = {name.removeprefix("rollout.") for name in keys_of(GenerationConfig) if name.startswith("rollout.")}
    prefix = "actor_rollout_ref.rollout."
    theirs = {name.removeprefix(prefix) for name in keys_of(PPOConfig) if name.startswith(prefix)}
    only_training = {name for name in theirs - ours if not name.startswith(("val_kwargs.", "log_prob_"))}
    assert ours < theirs and only_training == {"n", "n_agent", "calculate_log_probs"}


def test_jobs_of_a_sweep_must_not_write_the_same_file():
    words, outputs = [*REQUIRED, "--multirun", "trainer.seed=1,2"], []

    def task(loaded):
        outputs.append(loaded.config.data.output_path)

    with pytest.raises(ConfigError, match="several jobs have the same data.output_path"):
        run(words, GENERATION, finalise_generation, task)
    assert outputs == []
    words[1] = "data.output_path=out-${trainer.seed}.parquet"
    assert run(words, GENERATION, finalise_generation, task) == 0 and outputs == ["out-1.parquet", "out-2.parquet"]
