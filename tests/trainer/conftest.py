"""A small RL job: a random model, a few arithmetic rows, and `train(*overrides)` that runs it in this process.

`begun(*overrides)` has the finished run of these overrides in the folder `run`: trained once in a module, then copied.
"""

import json
import os
import shutil
import signal
import time
from contextlib import nullcontext
from functools import wraps
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from burnish.cli.quickstart import NANO
from burnish.config.load import load_ppo
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.models.tiny import byte_tokenizer, write_tiny_model
from burnish.trainer import setup
from tests.trainer.scripted import follow

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3"]
PPO = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "algorithm.kl_ctrl.kl_coef=0.01",
       "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100"]  # fmt: skip
# What says how long something took differs between two runs that are otherwise the same.
CLOCKS = ("timing_s/", "timing_per_token_ms/", "perf/")


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """A run collects garbage once before it trains, which takes long in a process that has run thousands of tests."""
    monkeypatch.setattr("burnish.trainer.ppo.older_objects_kept", nullcontext)


@pytest.fixture
def job(tmp_path, tiny_model, monkeypatch):
    """The overrides of a job of a few seconds, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    write_parquet(arithmetic.rows("train", 12, seed=0), "train.parquet")
    write_parquet(arithmetic.rows("test", 4, seed=0), "test.parquet")
    return [
        "data.train_files=train.parquet",
        "data.val_files=test.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        f"actor_rollout_ref.model.path={tiny_model}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "custom_reward_function.path=reward.py",
        "trainer.device=cpu",
        "trainer.default_local_dir=run",
        "trainer.logger=jsonl",
    ]


@pytest.fixture
def reward(tmp_path):
    """Write the job's reward function; by default one that a random model sometimes earns."""

    def write(body: str = "return float(len(set(solution_str)) % 3)") -> None:
        source = f"def compute_score(solution_str, ground_truth, extra_info):\n    {body}\n"
        (tmp_path / "reward.py").write_text(source)

    write()
    return write


@pytest.fixture
def build_trainer(job, reward):
    def make(*overrides: str):
        trainer = build(*job, *overrides)
        trainer.init_workers()
        return trainer

    return make


@pytest.fixture
def train(build_trainer):
    return lambda *overrides: build_trainer(*overrides).fit()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("made"), {}


@pytest.fixture
def begun(train, made):
    return lambda *overrides: once(made, "run", train, *overrides)


def once(made, folder: str, run, *overrides: str) -> None:
    """`run(*overrides)` leaves this folder, the first time; then it is copied."""
    place, runs = made
    if overrides not in runs:
        run(*overrides)
        runs[overrides] = shutil.copytree(folder, place / str(len(runs)), symlinks=True)
    else:
        shutil.copytree(runs[overrides], folder, symlinks=True)


@pytest.fixture
def resumes(train, metrics_of):
    """`resumes(step, *overrides, files=…)`: a run in `whole`, and in `parts` the same again from its checkpoint of that
    step. Both give the same metrics, samples, state and weights."""

    def check(step: int, *overrides: str, files: tuple[str, ...] = ("actor/model.safetensors",)) -> None:
        run = [*overrides, "data.val_files=null", "trainer.save_freq=1"]
        train(*run, "trainer.default_local_dir=whole")
        shutil.copytree("whole", "parts", symlinks=True)
        last = len(metrics_of("whole"))
        for later in range(step + 1, last + 1):
            Path(f"parts/global_step_{later}/manifest.json").unlink()  # the newest whole checkpoint is taken
        train(*run, "trainer.default_local_dir=parts")
        assert [event["step"] for event in events("resume", "parts")] == [step]
        assert metrics_of("whole") == metrics_of("parts")
        assert rollouts(last, "whole") == rollouts(last, "parts")
        assert state_of(last, "whole")["experience"] == state_of(last, "parts")["experience"]
        assert same_weights(last, "whole", "parts", *files)

    return check


@pytest.fixture(scope="session")
def roomy(tmp_path_factory):
    """A model whose context has room for several turns of single bytes. Read-only."""
    return write_tiny_model(tmp_path_factory.mktemp("roomy") / "model", context=4096)


@pytest.fixture
def agents(train, roomy, monkeypatch):
    """`agents(write, rows, *overrides)`: a run on these rows whose policy writes `write(asked)`."""

    def run(write, rows, *overrides, test=None):
        write_parquet(rows, "train.parquet")
        write_parquet(test or rows[:2], "test.parquet")
        follow(monkeypatch, write)
        return train(f"actor_rollout_ref.model.path={roomy}", *overrides)

    return run


def build(*overrides: str):
    loaded = load_ppo(list(overrides))
    setup.prepare(loaded)
    return setup.build(loaded.config)


def write_judge(language_model: Path, folder: Path, template: str | None = None) -> Path:
    """A random reward model on the trunk of a language model."""
    torch.manual_seed(5)
    module = AutoModelForSequenceClassification.from_pretrained(language_model, num_labels=1)
    torch.nn.init.normal_(module.score.weight)
    module.save_pretrained(folder)
    (byte_tokenizer(template) if template else byte_tokenizer()).save_pretrained(folder)
    return folder


def jsonl(*path: str | Path) -> list[dict]:
    return [json.loads(line) for line in Path(*path).read_text().splitlines()]


def rollouts(step: int, run: str = "run") -> list[dict]:
    return jsonl(run, "rollouts", f"{step}.jsonl")


def validated(step: int, run: str = "run") -> list[dict]:
    return jsonl(run, "validation", f"{step}.jsonl")


def events(kind: str, run: str | Path = "run") -> list[dict]:
    return [event for event in jsonl(run, "events.jsonl") if event["kind"] == kind]


def state_of(step: int, run: str = "run") -> dict:
    return json.loads(Path(run, f"global_step_{step}/data/trainer.json").read_text())


def wait_for(condition, process, seconds: float = 120) -> None:
    """Until a run in a process of its own has got there."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the run ended by itself with {process.returncode}"
        assert time.monotonic() < deadline, "the run did not get there in time"
        time.sleep(0.01)


def interrupted(method, call: int, times: int = 1):
    """Ctrl-C, so many times, inside the given call of a method."""
    calls = []

    @wraps(method)  # also how it is registered
    def wrapped(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return method(*args, **kwargs)

    return wrapped


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def same_weights(step: int, one: str, other: str, *files: str) -> bool:
    """Whether two runs saved the same tensors: the actor's weights, or these files of a checkpoint."""
    folders = [Path(run, f"global_step_{step}") for run in (one, other)]
    files = files or ("actor/model.safetensors",)
    return all(same(*(load_file(folder / file) for folder in folders)) for file in files)


def scores_of_six_steps(run: str, *overrides: str) -> list[float]:
    """The embedded model learns the quickstart's task in the working directory: the mean score of each step."""
    write_parquet(arithmetic.rows("train", 200, seed=0), "train.parquet")
    trainer = build(
        "data.train_files=train.parquet", "data.train_batch_size=16", "data.max_prompt_length=32",
        "data.max_response_length=64", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=8",
        f"actor_rollout_ref.model.path={NANO}", "trainer.total_training_steps=6", "trainer.save_freq=-1",
        "trainer.device=cpu", f"trainer.default_local_dir={run}", "trainer.logger=jsonl", *overrides,
    )  # fmt: skip
    trainer.init_workers()
    trainer.fit()
    return [line["critic/score/mean"] for line in jsonl(run, "metrics.jsonl")]


@pytest.fixture
def metrics_of():
    """The metrics of every step in a run folder, without what depends on the clock."""

    def read(folder: str | Path) -> list[dict[str, float]]:
        return [{k: v for k, v in line.items() if not k.startswith(CLOCKS)} for line in jsonl(folder, "metrics.jsonl")]

    return read


# `burnish sft` and `burnish rm`


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]


CONVERSATIONS = [
    turns("1+1", "2"),
    turns("say hello to everybody here", "hello, everybody"),
    turns("first", "one", "second", "two"),
    turns("a", "b"),
    turns("count", "1 2 3 4 5 6 7 8 9"),
    turns("again", "no", "again?", "yes", "sure?", "quite sure"),
    turns("colour of grass", "green"),
]
PAIRS = [
    ("1+1", "2", "3"),
    ("say hello to everybody here", "hello, everybody", "no"),
    ("count", "1 2 3 4 5 6 7 8 9", "1 2 4"),
    ("colour of grass", "green", "red, or some other colour that comes to mind"),
    ("a", "b", "c"),
    ("again?", "yes", "no, certainly not"),
    ("sure", "quite sure", "?"),
]


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """A model, and files whose rows are an example for `burnish sft` and a pair for `burnish rm` each."""
    folder = tmp_path_factory.mktemp("supervised")
    write_tiny_model(folder / "model", hidden_size=32, heads=2, context=256)
    rows = [
        {"messages": talk, "talk": talk[:2], "prompt": prompt, "chosen": chosen, "rejected": rejected, "gap": i / 2}
        for i, (talk, (prompt, chosen, rejected)) in enumerate(zip(CONVERSATIONS, PAIRS, strict=True))
    ]
    write_parquet(rows, folder / "train.parquet")
    write_parquet(rows[:3], folder / "val.parquet")
    return folder


@pytest.fixture
def supervised(world, tmp_path):
    """Run a command; returns the run folder and the metrics of each step, or None where `--plan` trains nothing."""

    def run(main, *overrides, out="run"):
        settings = {
            "data.train_files": world / "train.parquet",
            "data.max_length": 128,
            "data.train_batch_size": 3,
            "model.path": world / "model",
            "optim.lr": 0.01,
            "trainer.default_local_dir": tmp_path / out,
            "trainer.total_training_steps": 4,
            "trainer.device": "cpu",
        }
        flags = [word for word in overrides if word.startswith("--")]
        settings |= dict(text.split("=", 1) for text in overrides if text not in flags)
        main([f"{key}={value}" for key, value in settings.items()] + flags)
        return None if flags else (tmp_path / out, jsonl(tmp_path / out, "metrics.jsonl"))

    return run


def without_times(metrics: list[dict]) -> list[dict]:
    return [{k: v for k, v in step.items() if "time" not in k and k != "perf/throughput"} for step in metrics]
