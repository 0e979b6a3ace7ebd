"""`burnish eval` from keys to a configuration that can run."""

import pytest

from burnish.config import EVAL
from burnish.config.finalise import finalise_eval
from burnish.config.load import load, run
from burnish.errors import ConfigError


def finished(*argv: str):
    (loaded,) = load(list(argv), EVAL)
    assert finalise_eval(loaded.config, loaded.explicit) == []
    return loaded.config


def test_the_command_of_the_docs_sets_its_keys():
    config = finished(
        "data.path=out.parquet",
        "data.prompt_key=question",
        "data.response_key=answers",
        "data.data_source_key=task",
        "data.reward_model_key=truth",
        "custom_reward_function.path=my_reward.py",
        "+custom_reward_function.reward_kwargs.bonus=0.5",
        "reward.on_error=zero",
    )
    data = config.data
    assert (data.path, data.prompt_key, data.response_key) == ("out.parquet", "question", "answers")
    assert (data.data_source_key, data.reward_model_key) == ("task", "truth")
    assert config.custom_reward_function.reward_kwargs == {"bonus": 0.5} and config.reward.on_error == "zero"


@pytest.mark.parametrize(
    ("path", "output"),
    [
        ("out.parquet", "out.eval.json"),
        ("a/b/out.v2.jsonl", "a/b/out.v2.eval.json"),
        ("a/out.jsonl.gz", "a/out.eval.json"),
        ("out.json", "out.eval.json"),
    ],
)
def test_metrics_go_next_to_the_responses(path, output):
    assert finished(f"data.path={path}").data.output_path == output
    assert finished(f"data.path={path}", "data.output_path=x/y.json").data.output_path == "x/y.json"


def test_a_home_folder_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config = finished("data.path=~/out.parquet", "custom_reward_function.path=~/mine.py")
    assert config.data.path == "/home/me/out.parquet"
    assert config.data.output_path == "/home/me/out.eval.json"
    assert config.custom_reward_function.path == "/home/me/mine.py"


def test_missing_required_keys_are_named():
    with pytest.raises(ConfigError, match=r"data.path must be set, for example data.path=out.parquet"):
        finished()
    with pytest.raises(ConfigError, match=r"data.response_key must be set, for example data.response_key=responses"):
        finished("data.path=out.parquet", "data.response_key=")


def test_the_responses_are_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"data.output_path=./out.json is the file of responses.*out.eval.json"):
        finished("data.path=out.json", "data.output_path=./out.json")


def swept(*argv: str) -> list[str]:
    """The files that the jobs of a sweep write."""
    seen: list[str] = []
    run(["--multirun", *argv], EVAL, finalise_eval, lambda job: seen.append(job.config.data.output_path))
    return seen


@pytest.mark.parametrize(
    ("words", "shared"),
    [
        (["data.path=out.parquet", "custom_reward_function.path=a.py,b.py"], "out.eval.json"),
        (["data.path=a.parquet,b.parquet", "data.output_path=told.json"], "told.json"),
        (["data.path=a.json,a.jsonl"], "a.eval.json"),
        (["data.path=a.json", "data.output_path=b.json,./b.json"], "./b.json"),
        (["data.path=a.json", "data.output_path=told.json,link.json"], "link.json"),
    ],
)
def test_jobs_of_a_sweep_do_not_write_the_same_file(tmp_path, monkeypatch, words, shared):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.json").symlink_to("told.json")
    with pytest.raises(ConfigError, match=rf"several jobs have the same data.output_path={shared}; sweep it too"):
        swept(*words)


def test_jobs_of_a_sweep_that_write_separate_files():
    assert swept("data.path=a.parquet,b.parquet") == ["a.eval.json", "b.eval.json"]
    assert swept("data.path=x/a.json", "data.output_path=1.json,2.json") == ["1.json", "2.json"]
