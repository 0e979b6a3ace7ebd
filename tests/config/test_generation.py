"""`burnish generate` and `burnish eval` from keys to configurations that can run."""

import pytest

from burnish.config import EVAL
from burnish.config.finalise import finalise_eval, finalise_generation
from burnish.config.generation import GenerationConfig
from burnish.config.key import keys_of
from burnish.config.load import GENERATION, load, run
from burnish.config.ppo import PPOConfig
from burnish.errors import NotAvailable
from tests.config.conftest import refused

REQUIRED = ["data.path=test.parquet", "data.output_path=out.parquet", "model.path=m"]


def finish(*keys: str) -> tuple[GenerationConfig, list[str]]:
    given = {key.partition("=")[0] for key in keys}
    words = [word for word in REQUIRED if word.partition("=")[0] not in given]
    (job,) = load([*words, *keys], GENERATION)
    return job.config, [*job.notices, *finalise_generation(job.config, job.explicit)]


def test_the_command_of_the_docs_and_what_it_needs():
    config, notices = finish(
        "data.n_samples=5", "data.batch_size=128", "model.path=~/models/m", "rollout.temperature=1.0",
        "rollout.top_k=50", "rollout.top_p=0.7", "rollout.prompt_length=1536", "rollout.response_length=512",
    )  # fmt: skip
    assert notices == []
    assert not config.model.path.startswith("~") and config.model.path.endswith("/models/m")
    assert (config.rollout.prompt_length, config.rollout.response_length, config.rollout.top_k) == (1536, 512, 50)
    said = "data.path and data.output_path and model.path must be set, for example"
    refused(said, finalise_generation, GenerationConfig(), frozenset())
    refused("data.output_path must be set, for example data.output_path=out.parquet", finish, "data.output_path=null")
    refused(r"rollout.name=vllm needs the package vllm.*or use rollout.name=native", finish, "rollout.name=vllm")
    said = r"several devices \(asked for by rollout.tensor_model_parallel_size=2\)"
    refused(said, finish, "rollout.tensor_model_parallel_size=2", error=NotAvailable)


def test_output_is_a_separate_parquet_file(tmp_path, monkeypatch):
    refused("data.output_path=out.jsonl: the output is a parquet file", finish, "data.output_path=out.jsonl")
    refused("is the file of data.path", finish, "data.output_path=./test.parquet")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.parquet").symlink_to("test.parquet")
    refused("is the file of data.path", finish, "data.output_path=link.parquet")


def test_greedy_by_temperature_or_do_sample():
    config, notices = finish("rollout.temperature=0")
    assert not config.rollout.do_sample and notices == ["rollout.do_sample=false, because rollout.temperature=0"]
    config, _ = finish("rollout.temperature=0", "rollout.do_sample=true")
    assert not config.rollout.do_sample
    refused("data.n_samples=5 gives equal responses", finish, "data.n_samples=5", "rollout.do_sample=false")
    refused("data.n_samples=2 gives equal responses", finish, "data.n_samples=2", "rollout.temperature=0")
    _, notices = finish("rollout.do_sample=false", "rollout.top_p=0.9", "rollout.top_k=-1")
    assert notices == ["no effect: rollout.top_p (rollout.do_sample=false takes the likeliest token)"]
    assert finish("rollout.top_k=0")[0].rollout.top_k == -1


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("rollout.n=5", "responses per prompt are data.n_samples here; use data.n_samples=5"),
        ("rollout.n_agent=5", "'rollout.n_agent' is not supported: use data.n_samples"),
        ("rollout.val_kwargs.temperature=1", "sampling keys sit in rollout itself"),
        ("rollout.micro_batch_size=256", "use data.batch_size"),
        ("data.n_samples=0", "data.n_samples=0: must be an integer of at least 1"),
        ("data.n_sample=3", "did you mean 'data.n_samples'"),
        ("rollout.max_model_len=600", r"=600 is less than rollout.prompt_length=512 \+ rollout.response_length=512"),
    ],
)
def test_keys_that_are_not_there(key, words):
    refused(words, finish, key)


def test_keys_without_effect_are_reported():
    keys = ["rollout.enable_prefix_caching=false", "rollout.gpu_memory_utilization=0.9", "rollout.enforce_eager=true"]
    assert finish(*keys)[1] == []
    assert finish(*keys, "rollout.name=hf")[1] == [
        "no effect: rollout.gpu_memory_utilization, rollout.enable_prefix_caching (the hf engine keeps no KV pool)",
        "no effect: rollout.enforce_eager (the hf engine uses no CUDA graphs)",
    ]
    for name in ("native", "hf"):
        said = finish("rollout.free_cache_engine=false", f"rollout.name={name}")[1]
        assert said == ["no effect: rollout.free_cache_engine (nothing is trained in burnish generate)"]
    said = finish("model.enable_gradient_checkpointing=true")[1]
    assert said == ["no effect: model.enable_gradient_checkpointing (there is no backward pass in burnish generate)"]


def test_training_and_generation_share_the_keys_of_the_engine():
    ours = {name.removeprefix("rollout.") for name in keys_of(GenerationConfig) if name.startswith("rollout.")}
    prefix = "actor_rollout_ref.rollout."
    theirs = {name.removeprefix(prefix) for name in keys_of(PPOConfig) if name.startswith(prefix)}
    only_training = {name for name in theirs - ours if not name.startswith(("val_kwargs.", "profiler."))}
    assert ours < theirs and only_training == {"n_agent"}


def finished(*argv: str):
    (loaded,) = load(list(argv), EVAL)
    assert finalise_eval(loaded.config, loaded.explicit) == []
    return loaded.config


def test_the_command_of_the_docs_sets_its_keys():
    keys = {"path": "out.parquet", "prompt_key": "question", "response_key": "answers", "data_source_key": "task",
            "reward_model_key": "truth"}  # fmt: skip
    own = ("custom_reward_function.path=my_reward.py", "+custom_reward_function.reward_kwargs.bonus=0.5")
    config = finished(*(f"data.{name}={value}" for name, value in keys.items()), *own, "reward.on_error=zero")
    assert {name: getattr(config.data, name) for name in keys} == keys
    assert config.custom_reward_function.reward_kwargs == {"bonus": 0.5} and config.reward.on_error == "zero"


@pytest.mark.parametrize(
    ("path", "output"),
    [
        ("out.parquet", "out.eval.json"),
        ("a/b/out.v2.jsonl", "a/b/out.v2.eval.json"),
        ("a/out.jsonl.gz", "a/out.eval.json"),
    ],
)
def test_metrics_go_next_to_the_responses(path, output):
    assert finished(f"data.path={path}").data.output_path == output
    assert finished(f"data.path={path}", "data.output_path=x/y.json").data.output_path == "x/y.json"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], "data.path must be set, for example data.path=out.parquet"),
        (["data.path=a", "data.response_key="], "data.response_key must be set, for example .*key=responses"),
        (["data.path=out.json", "data.output_path=./out.json"], "=./out.json is the file of responses.*out.eval.json"),
    ],
)
def test_missing_keys_and_an_output_over_the_responses_are_refused(keys, message):
    refused(message, finished, *keys)


def swept(*argv: str) -> list[str]:
    seen: list[str] = []
    run(["--multirun", *argv], EVAL, finalise_eval, lambda job: seen.append(job.config.data.output_path))
    return seen


@pytest.mark.parametrize(
    ("words", "shared"),
    [
        (["data.path=a.parquet,b.parquet", "data.output_path=told.json"], "told.json"),
        (["data.path=a.json,a.jsonl"], "a.eval.json"),
        (["data.path=a.json", "data.output_path=b.json,./b.json"], "./b.json"),
        (["data.path=a.json", "data.output_path=told.json,link.json"], "link.json"),
    ],
)
def test_jobs_of_a_sweep_do_not_write_the_same_file(tmp_path, monkeypatch, words, shared):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.json").symlink_to("told.json")
    refused(rf"several jobs have the same data.output_path={shared}; sweep it too", swept, *words)


def test_jobs_of_a_sweep_that_write_separate_files():
    assert swept("data.path=a.parquet,b.parquet") == ["a.eval.json", "b.eval.json"]
    seen, words = [], [*REQUIRED[::2], "data.output_path=out-${trainer.seed}.parquet", "trainer.seed=1,2", "--multirun"]
    assert run(words, GENERATION, finalise_generation, lambda job: seen.append(job.config.data.output_path)) == 0
    assert seen == ["out-1.parquet", "out-2.parquet"]
