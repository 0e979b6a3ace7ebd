"""`train` and `sft`: rows, a reward and keys → what `burnish ppo` and `burnish sft` do, and a `Run`."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from burnish.api.call import public
from burnish.api.data import conversation_row, named_in_errors, prompt_row, to_files
from burnish.api.keys import NAME, given_keys, load, run_folder
from burnish.api.reward import read_reward
from burnish.api.run import Run, ranked
from burnish.api.table import Rows
from burnish.config import PPO, SFT, Schema, finalise_sft
from burnish.data.files import Row, describe
from burnish.errors import ConfigError
from burnish.trainer.main_ppo import finish

_training = threading.Lock()
BATCH = 32  # prompts of a step at most, where nobody says how many
BATCH_KEY, TRAIN, VAL = "data.train_batch_size", "data.train_files", "data.val_files"


class Step:
    """A step that is done, as `on_step` sees it."""

    def __init__(self, number: int, metrics: Mapping[str, float], make_samples: Callable[[], list[Row]]):
        self.number, self.metrics = number, dict(metrics)
        self._make_samples = make_samples
        self.stopped = False

    def samples(self, *, worst: int | None = None, best: int | None = None) -> Rows:
        """What was sampled in this step, with scores; nothing in supervised training."""
        return ranked(self._make_samples(), worst, best)

    def stop(self) -> None:
        """Make this step the last one: its checkpoint is written, and the run returns."""
        self.stopped = True


Callback = Callable[[Step], object]


@public
def train(
    model: str | Path | None = None,
    data: Any = None,
    reward: Any = None,
    *,
    val: Any = None,
    algorithm: str | None = None,
    steps: int | None = None,
    n: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    prompt_length: int | None = None,
    response_length: int | None = None,
    temperature: float | None = None,
    name: str | None = None,
    keys: Any = None,
    on_step: Callback | Sequence[Callback] = (),
) -> Run:
    """Train by RL, as `burnish ppo` does, and return the run.

    model             a Hugging Face folder, a checkpoint, a hub id
    data, val         a path, a list of dicts or of prompts, a Hugging Face dataset, a pandas or pyarrow table
    reward            a function, several, a path, a scorer's name (api/reward.py); None: the scorer of each row's
                      data_source
    algorithm         algorithm.adv_estimator [grpo]
    steps             trainer.total_training_steps; without it, one pass over the data (trainer.total_epochs)
    n                 actor_rollout_ref.rollout.n, responses per prompt
    lr                actor_rollout_ref.actor.optim.lr
    batch_size        data.train_batch_size, prompts per step [the data's, at most 32]
    prompt_length     data.max_prompt_length, in tokens
    response_length   data.max_response_length, in tokens
    temperature       actor_rollout_ref.rollout.temperature
    name              trainer.experiment_name: a run of that name is resumed. None: a new folder
    keys              any other key of `burnish ppo`: {"actor_rollout_ref.actor.ppo_epochs": 2}, or a PPOConfig
    on_step           called with the `Step` after each one: its metrics, its samples, and `stop()`
    """
    short = [
        ("model", "actor_rollout_ref.model.path", model),
        ("algorithm", "algorithm.adv_estimator", algorithm),
        ("steps", "trainer.total_training_steps", steps),
        ("n", "actor_rollout_ref.rollout.n", n),
        ("lr", "actor_rollout_ref.actor.optim.lr", lr),
        ("batch_size", BATCH_KEY, batch_size),
        ("prompt_length", "data.max_prompt_length", prompt_length),
        ("response_length", "data.max_response_length", response_length),
        ("temperature", "actor_rollout_ref.rollout.temperature", temperature),
        ("name", NAME, name),
        ("data", TRAIN, data),
        ("val", VAL, val),
    ]
    scored_by, callback = read_reward(reward), after_each(on_step)
    with job(PPO, keys, [*short, *scored_by.short], prompt_row) as given, scored_by.shared():
        loaded = load(PPO, {"algorithm.adv_estimator": "grpo"} | given)
        loaded.notices += finish(loaded.config, loaded.explicit) + scored_by.notices
        if scored_by.objects and loaded.config.trainer.executor != "local":
            raise ConfigError(
                f"reward {', '.join(scored_by.objects)}: a function of this program, and with "
                f"trainer.executor={loaded.config.trainer.executor} others score; save it in a file, and give its path"
            )
        from burnish.trainer import setup  # torch only once the keys are known to be right

        setup.run(loaded, callback)
    return Run(loaded.config.trainer.default_local_dir, reward)


@public
def sft(
    model: str | Path | None = None,
    data: Any = None,
    *,
    val: Any = None,
    steps: int | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    name: str | None = None,
    keys: Any = None,
    on_step: Callback | Sequence[Callback] = (),
) -> Run:
    """Fine-tune on conversations, as `burnish sft` does, and return the run.

    data, val    as for `train`; a row has `messages`, or a `prompt` and its `response`
    steps        trainer.total_training_steps
    epochs       trainer.total_epochs [1]
    lr           optim.lr
    batch_size   data.train_batch_size, examples per step [the data's, at most 32]
    max_length   data.max_length, tokens of a conversation
    name, keys (an SFTConfig), on_step   as for `train`
    """
    short = [
        ("model", "model.path", model),
        ("steps", "trainer.total_training_steps", steps),
        ("epochs", "trainer.total_epochs", epochs),
        ("lr", "optim.lr", lr),
        ("batch_size", BATCH_KEY, batch_size),
        ("max_length", "data.max_length", max_length),
        ("name", NAME, name),
        ("data", TRAIN, data),
        ("val", VAL, val),
    ]
    callback = after_each(on_step)
    with job(SFT, keys, short, conversation_row) as given:
        loaded = load(SFT, given)
        loaded.notices += finalise_sft(loaded.config, loaded.explicit)
        from burnish.trainer import supervised  # torch, as above
        from burnish.trainer.sft import NextTokens

        supervised.run(loaded, NextTokens, callback)
    return Run(loaded.config.trainer.default_local_dir)


@contextmanager
def job(
    schema: Schema[Any], keys: Any, short: Iterable[tuple[str, str, Any]], to_row: Callable[..., Row]
) -> Iterator[dict[str, Any]]:
    """The keys of a run, with files in its folder in place of rows, and a size of batch that the rows fill."""
    given = given_keys(schema, keys, short)
    with _one_at_a_time(), run_folder(schema, given) as folder, named_in_errors(folder / "data"):
        for key, name in ((TRAIN, "train"), (VAL, "val")):
            if key in given:
                given[key] = to_files(given[key], folder / "data", name, partial(to_row, keys=given))
        if TRAIN in given:
            given.setdefault(BATCH_KEY, min(BATCH, sum(describe(file).rows for file in given[TRAIN])))
        yield given


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two runs of a process would share its reward functions, its random numbers and its log."""
    if not _training.acquire(blocking=False):
        raise ConfigError(
            "another run of this process has not ended; wait for it, or start this one in its own process"
        )
    try:
        yield
    finally:
        _training.release()


def after_each(on_step: Callback | Sequence[Callback]) -> Any:
    """The `OnStep` of the trainers that calls them all."""
    callbacks = [on_step] if callable(on_step) else on_step
    if not (isinstance(callbacks, Sequence) and all(map(callable, callbacks))):
        raise ConfigError(
            f"on_step has the type {type(on_step).__name__}; give a function that takes a step, or a list"
        )

    def call(number: int, metrics: Mapping[str, float], make_samples: Callable[[], list[Row]]) -> bool:
        step = Step(number, metrics, make_samples)
        for callback in callbacks:
            callback(step)
        return step.stopped

    return call if callbacks else None
