"""Learning from given examples: the loop of `burnish sft` and `burnish rm`.

An `Objective` says what an example is and what its loss is (`sft.py`, `rm.py`). A step's loss does not depend on how
its examples are cut into passes, and its batch is a pure function of the seed and the step, so a resumed run is the
same run. `trainer.json` in a checkpoint has the keys of its run: resuming with other examples is refused by name.
"""

import contextlib
import copy
import dataclasses
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from burnish.algorithms.tally import Metrics, merge
from burnish.config import Loaded, explain
from burnish.config.checks import check_files
from burnish.config.fit import supervised_advice
from burnish.config.memory import gib, memory_of_one
from burnish.config.placement import ALONE, ModelSplit, split_over
from burnish.config.plan import plan_activations
from burnish.config.rules.cluster import check_shared
from burnish.config.rules.models import without_gpu
from burnish.config.supervised import SupervisedConfig
from burnish.controller import ClassWithInitArgs, ResourcePool, WorkerGroup
from burnish.controller.local import LocalWorkerGroup
from burnish.controller.processes import check_shared_gpus
from burnish.data.examples import Batches, Example, Examples
from burnish.data.files import describe
from burnish.engine.batching import MicroBatch
from burnish.engine.dump import dump_folder
from burnish.engine.forward import Forward
from burnish.engine.retry import OOM_RETRIES
from burnish.engine.seeding import seed_torch
from burnish.engine.trainable import Loss
from burnish.entry.ending import StopRequest
from burnish.errors import BadStepError, CheckpointError, ConfigError, ModelError, OutOfMemory, WorkerDied, WorkersLate
from burnish.literal import print_text
from burnish.models.device import dtype_on, gpus, pick_device
from burnish.models.facts import read_model_facts
from burnish.models.folder import fingerprint, read_json
from burnish.models.loading import load_tokenizer
from burnish.protocol import DataProto
from burnish.tracking import RunFolder, Tracker
from burnish.tracking.disk import OTHER_RUN
from burnish.trainer import executor
from burnish.trainer.checkpoint import (
    CheckpointStore,
    Quality,
    changed_keys,
    has_grown,
    is_due,
    key_values,
    restoring,
    step_of,
)
from burnish.trainer.memory import memory_explained
from burnish.trainer.report import OnStep
from burnish.trainer.restart import Restarts
from burnish.trainer.stage import choose_folder
from burnish.trainer.supervised_worker import SupervisedWorker
from burnish.waits import waiting

log = logging.getLogger(__name__)

Config = TypeVar("Config", bound=SupervisedConfig)

FILE, MODEL = "trainer.json", "model.path"
TOKENS_PER_PASS = 16384  # by default, where data.micro_batch_size_per_gpu is null
EXAMPLES = "number of training examples"

# Of the keys of `data`, those that make no other training examples. Files may be moved, and rows are counted.
OF_FILES = ("data.train_files", "data.train_max_samples", "data.val_files", "data.val_max_samples")
FREE = {*OF_FILES, "data.micro_batch_size_per_gpu", "data.packing"}


class Objective(ABC, Generic[Config, Example]):
    """What is learnt. A batch has a row for each example, with an `attention_mask` over all its tokens."""

    command: ClassVar[str]  # `burnish <command>`
    examples: ClassVar[str]  # what an example is called, in the plural

    def __init__(self, config: Config, tokenizer: PreTrainedTokenizerBase):
        self.config, self.tokenizer = config, tokenizer

    @property
    @abstractmethod
    def micro(self) -> MicroBatch:
        """What one pass holds."""

    @abstractmethod
    def dataset(self, files: Sequence[str], max_samples: int) -> Examples[Example]:
        """The examples in some files."""

    @abstractmethod
    def load_model(self, device: torch.device | None) -> PreTrainedModel:
        """The model before its first step; without a device, mapped from its files."""

    @abstractmethod
    def collate(self, examples: Sequence[Example]) -> DataProto:
        """Examples as a padded batch."""

    @abstractmethod
    def loss(self, forward: Forward, batch: DataProto) -> Loss:
        """The function from some rows of the batch to their share of its loss, and to what else is logged of them."""

    @abstractmethod
    def row_values(self, forward: Forward, rows: DataProto) -> dict[str, Tensor]:
        """What validation needs of each row, (b,) each."""

    @abstractmethod
    def validation(self, batch: DataProto, values: Mapping[str, Tensor]) -> Metrics:
        """A batch's part of the validation metrics, from the values of its rows."""


class SupervisedTrainer(Generic[Config, Example]):
    """The loop: draw, update, validate, save. Constructing it checks logger and checkpoint; `fit` loads the model."""

    def __init__(
        self,
        objective: Objective[Config, Example],
        train: Batches[Example],
        val: Batches[Example] | None,
        folder: RunFolder,
        split: ModelSplit = ALONE,
    ):
        self.split = split
        config, trainer = objective.config, objective.config.trainer
        self.objective, self.config, self.train, self.val = objective, config, train, val
        self.total_steps = total_steps(config, train)
        self.start = fingerprint(config.model.path)  # as the run found it: it may be gone when it saves
        self.store = CheckpointStore(
            folder.path, trainer.max_ckpt_to_keep, trainer.checkpoint_timeout, trainer.keep_best
        )
        self.resume_from = self.store.to_resume(trainer.resume_mode, trainer.resume_from_path)
        self.step = 0
        self.on_step: OnStep | None = None
        self.saved: int | None = None  # the last step whose checkpoint this run wrote, or started from
        self.restart: dict[str, Any] | None = None  # the event, where workers of an attempt before this one died
        self.quality: Quality | None = None  # of the model after the last step
        self.bad_steps = 0  # updates in a row that could not be applied
        self.changed: list[str] = []  # keys, since the checkpoint
        if self.resume_from is not None:
            self.step = self.saved = step_of(self.resume_from)
            self.bad_steps, self.changed = read_state(self.resume_from, objective, len(train.dataset))
        else:
            folder.check_inputs_stay(config)
        self.tracker = Tracker(trainer, folder, total_steps=self.total_steps, config=dataclasses.asdict(config))

    def fit(self) -> dict[str, float]:
        metrics, stop = dict[str, float](), StopRequest()
        explained = memory_explained(self.config.trainer.device, self._advice, "training")
        with self.tracker, contextlib.ExitStack() as stack, explained:
            stack.callback(self.store.finished, wait=True)  # a checkpoint that is being written is completed
            self.begin(stack)
            while self.step < self.total_steps:
                with stop.delayed():
                    metrics = self.train_step()
                    if self.val is not None and is_due(self.config.trainer.test_freq, self.step, self.total_steps):
                        metrics |= self.validate(self.val)
                    self.quality = (True, -metrics["val/loss"]) if "val/loss" in metrics else None
                    self.tracker.log(metrics, self.step)
                with stop.breaks():
                    if self.on_step and self.on_step(self.step, metrics, list):
                        self.total_steps = self.step
                if stop.asked:
                    self.total_steps = self.step  # the last: it is saved
                if is_due(self.config.trainer.save_freq, self.step, self.total_steps):
                    self.save()  # after logging: a run killed in between logs the step again, rather than never
            if stop.asked:
                raise KeyboardInterrupt
        return metrics

    def _advice(self) -> str | None:
        return memory_advice(
            self.objective, self.train, self.split, executor.device_memory(self.config.trainer), ran_out=True
        )

    def begin(self, stack: contextlib.ExitStack) -> None:
        """Make the workers, which end with the `stack`, and load the checkpoint there is."""
        trainer, command = self.config.trainer, self.objective.command
        pool = ResourcePool([self.split.processes], command, trainer.device)
        made = {command: ClassWithInitArgs(SupervisedWorker, self.objective, self.total_steps)}
        self.workers: WorkerGroup
        if self.split.is_sharded:
            group = executor.start(self.config, trainer, self.tracker.folder.path)
            stack.callback(group.disconnect)
            self.workers = group.spawn(pool, made)[command]
        else:
            self.workers = LocalWorkerGroup.spawn(pool, made)[command]
        if self.resume_from is not None:
            with waiting("checkpoint", "the trainer", f"reading checkpoint {self.resume_from}", self.store.deadline_s):
                self.workers.load_checkpoint(self.resume_from)
        self.tracker.folder.write_config(self.config)
        if self.resume_from is None:
            self.tracker.start()
        else:
            self.tracker.resume(self.step)
            log.info("resuming from %s, step %d of %d", self.resume_from, self.step, self.total_steps)
            for change in self.changed:
                log.warning("changed since that checkpoint: %s", change)
        if self.restart:
            self.tracker.event("restart", **self.restart)

    def train_step(self) -> dict[str, float]:
        start = time.perf_counter()
        epoch = self.train.epoch(self.step)
        batch = self.objective.collate(self.train.batch(self.step))
        update = self.workers.train(batch, self.step + 1)
        self.step += 1
        retries = {OOM_RETRIES: update.pop(OOM_RETRIES)} if OOM_RETRIES in update else {}
        if update["bad_step"]:
            self._report_bad_step()
        else:
            self.bad_steps = 0
        tokens, seconds = int(batch.batch["attention_mask"].sum()), time.perf_counter() - start
        return {
            "training/global_step": self.step,
            "training/epoch": epoch,
            **{f"train/{name}": value for name, value in update.items()},
            **retries,
            "perf/total_num_tokens": tokens,
            "perf/time_per_step": seconds,
            "perf/throughput": tokens / seconds,
        }

    def _report_bad_step(self) -> None:
        self.bad_steps += 1
        log.warning("step %d: loss or gradient was NaN or infinite; the step is not applied", self.step)
        dump = dump_folder(self.tracker.folder.path, self.step, self.objective.command, 0)
        if dump.is_dir():
            log.warning("the update is dumped: `burnish replay %s` runs it again", dump)
        self.tracker.event("bad_step", step=self.step, dumps=[str(dump)] if dump.is_dir() else [])
        if self.bad_steps >= self.config.trainer.max_bad_steps:
            raise BadStepError(
                f"loss or gradient was NaN or infinite in {self.bad_steps} updates in a row, up to step {self.step}. "
                "Lower optim.lr, or look at the examples of these steps; trainer.max_bad_steps sets the limit"
            )

    def validate(self, batches: Batches[Example]) -> dict[str, float]:
        objective, parts = self.objective, []
        for examples in batches.once():
            batch = objective.collate(examples)
            parts.append(objective.validation(batch, self.workers.row_values(batch)))
        return {f"val/{name}": value for name, value in merge(parts).items()}

    def save(self) -> Path:
        def write(folder: Path) -> None:
            self.workers.save_checkpoint(folder)
            facts = {"command": self.objective.command, EXAMPLES: len(self.train.dataset), "bad_steps": self.bad_steps}
            facts["run"] = {MODEL: self.start}
            (folder / FILE).write_text(json.dumps(facts | {"config": key_values(self.config)}, indent=1))

        folder = self.store.save(self.step, write, self.quality)
        self.saved = self.step
        best = self.tracker.health.history.best = step_of(self.store.best(self.step) or folder)
        self.tracker.event("checkpoint", step=self.step, best=best)
        return folder


def run(
    loaded: Loaded[Config],
    make: Callable[[Config, PreTrainedTokenizerBase], Objective[Config, Example]],
    on_step: OnStep | None = None,
) -> None:
    """One job, its keys checked; whatever else can be wrong is found before a model is loaded."""
    config = loaded.config
    check_files(config, describe)
    choose_folder(loaded, MODEL, FILE)
    loaded.log_notices()
    facts = read_model_facts(config.model.path)
    if facts.context is not None and config.data.max_length > facts.context:
        raise ConfigError(
            f"data.max_length={config.data.max_length}, but {config.model.path} has a context of {facts.context} "
            f"tokens; set data.max_length={facts.context} or less"
        )
    device, planned = pick_device(config.trainer.device), loaded.flags.gpu_memory
    # A missing GPU is an error before the rows are read; with --gpu-memory others are planned for.
    split = split_over(executor.process_count(config.trainer, 0 if planned else gpus(config.trainer.device)))
    if config.trainer.processes_per_gpu > 1 and split.is_sharded and device.type == "cuda" and not planned:
        check_shared_gpus(config.trainer.processes_per_gpu)
    check_shared("model", config.model, split.processes)
    for notice in without_gpu(config) if device.type == "cpu" else []:
        log.info("%s", notice)
    seed_torch(config.trainer.seed, deterministic=config.trainer.deterministic)
    tokenizer = load_tokenizer(config.model.tokenizer_path or config.model.path, config.model.trust_remote_code)
    objective = make(config, tokenizer)
    data, val = config.data, None
    examples = objective.dataset(data.train_files, data.train_max_samples)
    if data.train_batch_size > len(examples):
        said = "data.train_batch_size=%d, not %d: there are that many %s to train on"
        log.info(said, len(examples), data.train_batch_size, objective.examples)
        data.train_batch_size = len(examples)
    order = partial(Batches, batch_size=data.train_batch_size, seed=data.seed, shuffle=data.shuffle)
    training = order(examples)
    if data.val_files:
        val = order(objective.dataset(data.val_files, data.val_max_samples))
    _check_vocabulary(config, facts.vocab, *[part.dataset for part in (training, val) if part is not None])
    memory = planned // config.trainer.processes_per_gpu if planned else executor.device_memory(config.trainer)
    config.model.dtype = dtype_on(None if planned else device, config.model.dtype)
    tokens = tokens_per_pass(objective, training, split)
    for notice in plan_activations(config.model, facts, tokens, memory, split):
        log.info("%s", notice)
    if loaded.flags.plan:
        print_text(plan(objective, training, split, memory))
        if too_much := memory_advice(objective, training, split, memory):
            raise OutOfMemory(f"does not fit: {too_much}")
        return
    print_text(explain(config, loaded.explicit))
    trainer = train(objective, training, val, split, loaded.given, on_step)
    log.info("done, %d steps; the newest checkpoint is %s", trainer.step, trainer.store.latest())


def train(
    objective: Objective[Config, Example],
    training: Batches[Example],
    val: Batches[Example] | None,
    split: ModelSplit,
    given: Mapping[str, Any],
    on_step: OnStep | None,
) -> SupervisedTrainer[Config, Example]:
    """Train to the end. Where one of several processes died or hangs, the run continues from its newest checkpoint."""
    config, restarts = objective.config, Restarts(objective.config)
    while True:
        attempt = copy.copy(objective)
        attempt.config = restarts.resumed(config)
        with RunFolder(config.trainer.default_local_dir) as folder:
            folder.write_recipe(given)
            trainer = SupervisedTrainer(attempt, training, val, folder, split)
            trainer.on_step, trainer.restart = on_step, restarts.take_event()
            try:
                trainer.fit()
                return trainer
            except (WorkerDied, WorkersLate) as error:
                if not split.is_sharded:
                    raise
                restarts.note(error, trainer)


def plan(objective: Objective[Config, Example], training: Batches[Example], split: ModelSplit, room: int | None) -> str:
    """What `--plan` prints: the arithmetic of a run. `room`: bytes of a GPU for one process, None on a CPU."""
    examples, kind, micro = training.dataset, objective.examples, objective.micro
    lengths = [len(examples[i]) for i in range(len(examples))]
    limit = f"{micro.max_tokens} tokens" if micro.max_tokens else f"{micro.max_sequences} {kind}"
    facts, tokens = read_model_facts(objective.config.model.path), tokens_per_pass(objective, training, split)
    memory = memory_of_one(objective.config.model, facts, tokens, on_gpu=room is not None, split=split)
    of_each = f" in each of {split.processes} processes" if split.is_sharded else ""
    lines = {
        f"training {kind}": f"{len(lengths)}, {sum(lengths)} tokens, {max(lengths)} in the longest",
        f"{kind} per step": training.batch_size,
        "steps per epoch": len(training),
        "steps in all": total_steps(objective.config, training),
        "one pass holds at most": limit,
        "estimated peak memory": f"{gib(memory.peak)}{of_each}: {gib(memory.always)} throughout, plus one "
        "training pass",
    }
    return "\n".join(f"{name:<25}{value}" for name, value in lines.items())


def tokens_per_pass(
    objective: Objective[Config, Example], training: Batches[Example], split: ModelSplit = ALONE
) -> int:
    """Tokens of a pass at most: what its limit allows, of as many examples as a process has of an update."""
    micro, most = objective.micro, max(len(training.dataset[i]) for i in range(len(training.dataset)))
    share = -(-training.batch_size // split.processes)
    count = min(micro.max_sequences or share, share)
    return max(most, min(micro.max_tokens or count * most, count * most))


def memory_advice(
    objective: Objective[Config, Example],
    training: Batches[Example],
    split: ModelSplit,
    room: int | None,
    *,
    ran_out: bool = False,
) -> str | None:
    """What is planned and what would make it fit; None where it fits by the plan and has not run out of memory."""

    def tokens(config: SupervisedConfig) -> int:
        other = copy.copy(objective)
        other.config = cast(Config, config)
        return tokens_per_pass(other, training, split)

    config = objective.config
    return supervised_advice(config, read_model_facts(config.model.path), tokens, room, ran_out=ran_out, split=split)


def total_steps(config: SupervisedConfig, train: Batches[Example]) -> int:
    return config.trainer.total_training_steps or config.trainer.total_epochs * len(train)


def _check_vocabulary(config: SupervisedConfig, rows: int, *datasets: Examples[Example]) -> None:
    """The model has an embedding for every token of the examples. Tokenizers may know more tokens than a model does."""
    model = config.model
    largest = max(int(examples[i].ids.max()) for examples in datasets for i in range(len(examples)))
    if largest >= rows:
        key = "model.tokenizer_path" if model.tokenizer_path else "model.path"
        raise ModelError(
            f"{key}={model.tokenizer_path or model.path}: its tokenizer gives the examples ids up to {largest}, and "
            f"the model in model.path={model.path} has a vocabulary of {rows} (vocab_size in config.json). Name the "
            "tokenizer that belongs to the model in model.tokenizer_path, or a model with these tokens in model.path"
        )


def read_state(folder: Path, objective: Objective[Config, Example], examples: int) -> tuple[int, list[str]]:
    """The bad steps in a row before the checkpoint, and `key: then → now` for each key that has changed since;
    CheckpointError where this run would not continue with the examples of that one."""
    command, config = objective.command, objective.config
    try:
        state = read_json(folder / FILE, CheckpointError)
        theirs: dict[str, Any] = state | state.get("config", {})  # older checkpoints have only a few keys, outside it
        bad_steps = int(state["bad_steps"])
    except (CheckpointError, ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise CheckpointError(f"{folder} is not a checkpoint of `burnish {command}`: no readable {FILE}") from error
    if (writer := state.get("command", "sft")) != command:  # the oldest do not name it, and are of `burnish sft`
        raise CheckpointError(
            f"{folder} is not a checkpoint of `burnish {command}`, but of `burnish {writer}`. Give this run "
            f"its own folder with {OTHER_RUN}"
        )
    ours = {EXAMPLES: examples} | key_values(config)
    for name, value in ours.items():
        decides = name == EXAMPLES or (name.startswith("data.") and name not in FREE)
        then: Any = theirs.get(name, value)
        if not decides or then == value:
            continue
        with restoring(folder / FILE):
            if name == EXAMPLES and has_grown(theirs, config.data.train_files, then, value):
                log.warning("changed since that checkpoint: %s: %d → %d, drawn in another order", name, then, value)
                continue
        raise CheckpointError(
            f"{folder} was written with {name}={then}, this run has {value}: it would continue with other examples. "
            f"Set it as it was, or start another run with {OTHER_RUN}"
        )
    return bad_steps, changed_keys(theirs, config)
