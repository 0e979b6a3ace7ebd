"""One update that was NaN or infinite, run again alone: what `burnish replay DUMP` does.

Consumes a dump (`engine/dump.py`) and keys to be set otherwise (`replay_config.py`); produces a `Replay`: the metrics
that come out now, and where it is not finite; and its text, `report`. `SUBJECTS` has, for each role, how its model is
loaded and its objective built: by the worker or the objective of the run itself, so that the same numbers come out.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from burnish.config import PPOConfig
from burnish.config.key import read
from burnish.controller import ClassWithInitArgs, Worker
from burnish.controller.worker import WorkerPlace
from burnish.engine import diagnosis
from burnish.engine.batching import MicroBatch
from burnish.engine.diagnosis import TokenPlace
from burnish.engine.dump import Dump, read_dump, versions
from burnish.engine.packing import pack
from burnish.engine.seeding import seed_torch
from burnish.engine.trainable import Loss, Trainable
from burnish.errors import CheckpointError, ConfigError
from burnish.models.device import pick_device
from burnish.models.facts import read_model_facts
from burnish.models.loading import load_tokenizer
from burnish.protocol import DataProto
from burnish.tracking.progress import Progress
from burnish.trainer.replay_config import ACTOR, MODELS, config_of
from burnish.trainer.rm import Preferences
from burnish.trainer.sft import NextTokens
from burnish.trainer.supervised_worker import make_trainable
from burnish.workers.actor_rollout_ref import ActorRolloutRefWorker
from burnish.workers.critic import CriticWorker
from burnish.workers.objectives import loss_mask
from burnish.workers.process_reward import ProcessRewardWorker

log = logging.getLogger(__name__)

W = TypeVar("W", bound=Worker)

SHOWN = 10  # rows, and names of parameters
ROW = "row"  # a column with the number of each row in the dump: an update may leave some out


@dataclass(frozen=True)
class Subject:
    """What an update is computed from: a model, the rows that it runs, their loss, and how they are cut into passes."""

    trainable: Trainable
    rows: DataProto
    loss: Loss
    micro: MicroBatch
    values: Mapping[str, Tensor]  # of each response token, (B, R), or of each row, (B, 1)
    mask: Tensor  # of those that count
    sides: int = 1  # sequences in a row: two of a pair


@dataclass(frozen=True)
class BadRow:
    number: int  # in the dump
    uid: Any  # None where the rows have none
    prompt: int  # tokens
    response: int
    loss: float
    token: int | None  # the first of the response with a value that is NaN or infinite
    values: dict[str, float]  # of that token


@dataclass(frozen=True)
class Replay:
    dump: Dump
    device: torch.device
    computed: int  # rows that the update runs the model on
    metrics: dict[str, float]  # of the update, as they are now
    weights: list[str]  # parameters that are not finite
    gradients: list[str]  # parameters whose gradient is not finite
    parameters: int
    rows: list[BadRow]
    module: str | None  # the first whose output is not finite
    largest: dict[str, tuple[float, TokenPlace]]  # the finite value of the largest size; its row in the dump

    @property
    def is_finite(self) -> bool:
        return _is_finite(self.metrics)


def replay(folder: str | Path, overrides: Sequence[str] = ()) -> Replay:
    dump = read_dump(folder)
    config = config_of(dump, overrides)
    for name, version in versions().items():
        if dump.versions.get(name) != version:
            log.warning("the dump was written with %s %s, this is %s", name, dump.versions.get(name), version)
    _check_vocabulary(dump, read(config, f"{MODELS[dump.command][dump.update.role]}.path"))
    seed_torch(config.trainer.seed, deterministic=config.trainer.deterministic)
    dump.batch.non_tensor_batch[ROW] = np.arange(len(dump.batch)).astype(object)
    log.info("loading the model of %s", dump.folder)
    subject = SUBJECTS[dump.update.role](config, dump)
    trainable = subject.trainable
    log.info("running the update on %d rows", len(subject.rows))
    metrics = gradients(subject, subject.rows)
    bad = diagnosis.bad_gradients(trainable)
    rows, module = list[BadRow](), None
    if not _is_finite(metrics):
        alone: dict[int, float] = {}  # the loss of each row that is not finite when it is run alone, or its gradient
        with Progress("running rows alone", len(subject.rows)) as progress:
            for i in range(len(subject.rows)):
                of_row = gradients(subject, subject.rows[[i]])
                if not _is_finite(of_row):
                    alone[i] = of_row["loss"]
                progress.advance()
        rows = [_described(subject, i, loss) for i, loss in alone.items()]
        first = [min(alone)] if alone else range(len(subject.rows))
        module = diagnosis.first_bad_module(trainable.module, lambda: _run_modules(subject, first))
    numbers = subject.rows.non_tensor_batch[ROW]
    found = {name: diagnosis.largest(value, subject.mask) for name, value in subject.values.items()}
    return Replay(
        dump=dump,
        device=trainable.device,
        computed=len(subject.rows),
        metrics=metrics,
        weights=diagnosis.bad_weights(trainable.module),
        gradients=bad,
        parameters=len(trainable.masters),
        rows=rows,
        module=module,
        largest={n: (at[0], TokenPlace(numbers[at[1].row], at[1].token)) for n, at in found.items() if at is not None},
    )


def gradients(subject: Subject, rows: DataProto) -> dict[str, float]:
    """The metrics of these rows with the loss and the norm of the gradients, which stay where they are."""
    merged = subject.trainable.forward_backward(rows, subject.loss, subject.micro)
    return merged | {"grad_norm": diagnosis.grad_norm(subject.trainable)}


@torch.no_grad()
def _run_modules(subject: Subject, numbers: Iterable[int]) -> None:
    """Some rows through the model's own forward, which calls every module; a fused pass calls few of them."""
    module, columns = subject.trainable.module.eval(), subject.rows.batch
    for i in numbers:
        ids, mask = (columns[name][i].view(subject.sides, -1) for name in ("input_ids", "attention_mask"))  # (sides, L)
        for line, real in zip(ids, mask.bool(), strict=True):
            module(input_ids=line[real][None].to(subject.trainable.device))


def _described(subject: Subject, i: int, loss: float) -> BadRow:
    columns, row = subject.rows.batch, subject.rows.non_tensor_batch
    real, width = columns["attention_mask"][i], columns["responses"].shape[1] if "responses" in columns else 0
    length, response = int(real.sum()), int(real[len(real) - width :].sum())
    token = diagnosis.first_bad_token(subject.values, subject.mask, i)
    values = {} if token is None else {name: float(value[i, token]) for name, value in subject.values.items()}
    uid = row["uid"][i] if "uid" in row else None
    return BadRow(row[ROW][i], uid, length - response, response, loss, token, values)


def _check_vocabulary(dump: Dump, model: str) -> None:
    columns, vocabulary = dump.batch.batch, read_model_facts(model).vocab
    real = columns["input_ids"][columns["attention_mask"].bool()]
    if other := [int(token) for token in (real.min(), real.max()) if not 0 <= int(token) < vocabulary]:
        raise CheckpointError(
            f"the dump {dump.folder} is damaged (input_ids has the token {other[0]}, and the vocabulary of {model} is "
            f"{vocabulary}); copy it again, or name the model of the run"
        )


def _is_finite(metrics: Mapping[str, float]) -> bool:
    return math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"])


def report(replay: Replay) -> str:
    dump, update = replay.dump, replay.dump.update
    heading = [
        f"step {update.step}, optimiser step {update.number} of {update.role} (burnish {dump.command})",
        f"{replay.computed} rows computed of the {len(dump.batch)} in the mini-batch, on {replay.device.type}",
    ]
    return "\n".join([*heading, "", *_metrics(replay), "", *_verdict(replay)])


def _metrics(replay: Replay) -> list[str]:
    """A line for each metric of an update without its optimiser step; values in full, so that every bit shows."""
    seen, now = replay.dump.update.metrics, replay.metrics
    names = ["loss", "grad_norm", *(name for name in now if name not in ("loss", "grad_norm"))]
    cells = [(name, repr(seen[name]) if name in seen else "-", repr(now[name])) for name in names]
    table = [("", "in the run", "now"), *cells]
    first, second = (max(len(row[i]) for row in table) for i in (0, 1))
    marks = ["", *("" if then == value else "  (differs)" for _, then, value in cells)]
    lines = [f"{name:<{first}}  {then:<{second}}  {value}" for name, then, value in table]
    return [line + mark for line, mark in zip(lines, marks, strict=True)]


def _verdict(replay: Replay) -> list[str]:
    lines = ["loss and gradient are finite" if replay.is_finite else "loss or gradient is NaN or infinite"]
    if not replay.is_finite:
        lines.append(f"rows with NaN or infinity when run alone: {len(replay.rows)} of {replay.computed}")
        lines += [f"  {_row(row)}" for row in replay.rows[:SHOWN]]
        lines += ["  …"] if len(replay.rows) > SHOWN else []
        lines.append(f"first module with such an output: {replay.module or 'none when the model is run alone'}")
    lines.append(f"weights that are not finite: {_named(replay.weights)}")
    lines.append(f"gradients that are not finite: {_named(replay.gradients)} (of {replay.parameters})")
    if not replay.gradients and math.isinf(replay.metrics["grad_norm"]):
        lines.append("  (every gradient is finite; their norm is more than float32 holds)")
    lines.append("largest finite values:")
    for name, (value, place) in replay.largest.items():
        lines.append(f"  {name} {value!r} (row {place.row}, token {place.token})")
    return lines


def _row(row: BadRow) -> str:
    who = f"row {row.number}" + ("" if row.uid is None else f", uid {row.uid!r}")
    tokens = f"{row.prompt} + {row.response} tokens" if row.response else f"{row.prompt} tokens"
    where = "the values of its tokens are finite, their sum is not"
    if row.token is not None:
        where = f"first at token {row.token}: " + ", ".join(f"{name} {value!r}" for name, value in row.values.items())
    return f"{who}: {tokens}, loss {row.loss!r}; {where}"


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"{len(names)}: {shown}" if names else "0"


def _worker(cls: type[W], config: PPOConfig) -> W:
    config.global_profiler.steps = None  # whose tool may need another device
    return ClassWithInitArgs(cls, config, 1).make(WorkerPlace(device=config.trainer.device))


def _actor(config: PPOConfig, dump: Dump) -> Subject:
    worker, mini = _worker(ActorRolloutRefWorker, config), dump.batch
    if config.actor_rollout_ref.actor.use_kl_loss and "ref_log_prob" not in mini.batch:
        raise ConfigError(
            f"{ACTOR}.use_kl_loss=true: the dump comes from a run without a reference policy, so there is no KL; "
            f"leave out use_kl_loss and {ACTOR}.kl_loss_coef"
        )
    if config.algorithm.rollout_correction.bypass_mode and "old_log_probs" not in mini.batch:
        raise CheckpointError(f"the dump {dump.folder} is damaged (no column old_log_probs); copy it again")
    worker.load_actor()
    if worker.choose is not None and "chosen" not in mini.batch:
        mini = worker.with_choice(mini, dump.update.step, dump.update.number)
    rows = worker.rows_to_train(mini)
    log_prob = worker.log_probs(rows, worker.update_micro_batch)["log_prob"]
    values = {"log_prob": log_prob}
    if "old_log_probs" in rows.batch:  # else nothing read them, and the ratio is 1
        values["log_ratio"] = log_prob - rows.batch["old_log_probs"]
    values |= _columns(rows, "old_log_probs", "rollout_log_probs", "ref_log_prob", "advantages")
    return Subject(worker.actor, rows, worker.objective(mini), worker.update_micro_batch, values, loss_mask(rows))


def _critic(config: PPOConfig, dump: Dump) -> Subject:
    worker, mini = _worker(CriticWorker, config), dump.batch
    worker.load_critic()
    critic, micro = worker.critic, worker.update_micro_batch
    values = critic.infer(lambda rows: {"value": critic.forward.values(pack(rows.batch))}, mini, micro)
    values |= _columns(mini, "values", "returns")
    return Subject(critic, mini, worker.objective(mini), micro, values, mini.batch["response_mask"])


def _process_reward(config: PPOConfig, dump: Dump) -> Subject:
    worker, mini = _worker(ProcessRewardWorker, config), dump.batch
    worker.load_trained()
    model, micro = worker.model, worker.micro_batch
    values = model.infer(lambda rows: model.forward.log_probs(pack(rows.batch)), mini, micro)
    values |= _columns(mini, "process_ref_log_prob")
    return Subject(model, mini, worker.objective(mini), micro, values, mini.batch["response_mask"])


def _examples(config: Any, dump: Dump) -> Subject:
    """Of `burnish sft` or `burnish rm`, whose rows are pairs."""
    tokenizer = load_tokenizer(config.model.tokenizer_path or config.model.path, config.model.trust_remote_code)
    pairs, mini = dump.update.role == "rm", dump.batch
    objective: Any = Preferences(config, tokenizer) if pairs else NextTokens(config, tokenizer)
    trainable = make_trainable(objective, 1, pick_device(config.trainer.device))
    forward, micro = trainable.forward, objective.micro
    loss = objective.loss(forward, mini)
    if not pairs:
        values = trainable.infer(lambda rows: forward.log_probs(pack(rows.batch)), mini, micro)
        return Subject(trainable, mini, loss, micro, values, mini.batch["response_mask"])
    of_pairs = trainable.infer(lambda rows: objective.row_values(forward, rows), mini, micro)
    values = {name: value[:, None] for name, value in of_pairs.items()}  # (B, 1)
    return Subject(trainable, mini, loss, micro, values, torch.ones(len(mini), 1), sides=2)


SUBJECTS: dict[str, Callable[[Any, Dump], Subject]] = {
    "actor": _actor, "critic": _critic, "process_reward": _process_reward, "sft": _examples, "rm": _examples
}  # fmt: skip


def _columns(rows: DataProto, *names: str) -> dict[str, Tensor]:
    return {name: rows.batch[name] for name in names if name in rows.batch}
