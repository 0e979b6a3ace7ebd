"""Supervised fine-tuning on conversations, with loss on the assistant's tokens only: what `burnish sft` runs.

Consumes a finished `SFTConfig` (data, model, optim, trainer) and rows with `messages` or a prompt and a response;
leaves a run folder with metrics and `global_step_N` checkpoints that transformers loads as they are.

A step has `data.train_batch_size` examples, and its loss is the mean over all their assistant tokens, however they
are cut into passes: each example is a row of its own and never sees another. The batch of a step is a pure function
of the seed and the step, so a resumed run is the same run.
"""

import dataclasses
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from burnish.algorithms.tally import Metrics
from burnish.config import Loaded, SFTConfig, explain
from burnish.config.checks import check_files
from burnish.data.files import describe
from burnish.data.sft import SFTBatches, SFTDataset, SFTExample
from burnish.engine.batching import MicroBatch
from burnish.engine.forward import log_probs
from burnish.engine.packing import pack
from burnish.engine.seeding import seed_torch
from burnish.engine.trainable import Trainable
from burnish.errors import BadStepError, CheckpointError, ConfigError
from burnish.models.device import pick_device
from burnish.models.loading import load_causal_lm, load_tokenizer, read_model_facts
from burnish.protocol import DataProto
from burnish.tracking import RunFolder, Tracker
from burnish.trainer.checkpoint import CheckpointStore, step_of
from burnish.trainer.due import is_due

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

STATE = "trainer.json"
TOKENS_PER_PASS = 16384  # where data.micro_batch_size_per_gpu does not say


class SFTTrainer:
    """The loop: draw, update, validate, save.

    Making it finds what is wrong with logger and checkpoint; `fit` loads the model.
    """

    def __init__(
        self,
        config: SFTConfig,
        tokenizer: "PreTrainedTokenizerBase",
        train: SFTBatches,
        val: SFTBatches | None,
        folder: RunFolder,
    ):
        trainer = config.trainer
        self.config, self.tokenizer = config, tokenizer
        self.train, self.val = train, val
        self.total_steps = total_steps(config, train)
        self.micro = micro_batch(config)
        self.store = CheckpointStore(folder.path, trainer.max_ckpt_to_keep)
        self.resume_from = self.store.to_resume(trainer.resume_mode, trainer.resume_from_path)
        self.step = 0
        self.bad_steps = 0  # updates in a row that could not be applied
        if self.resume_from is not None:
            self.step, self.bad_steps = step_of(self.resume_from), self._read_state(self.resume_from)["bad_steps"]
        self.tracker = Tracker(trainer, folder, total_steps=self.total_steps, config=dataclasses.asdict(config))

    def load_model(self) -> None:
        """Make the model and its optimiser, as they were in the checkpoint where there is one."""
        config, device = self.config, pick_device(self.config.trainer.device)
        module = load_causal_lm(config.model.path, config.model, device)
        self.trainable = Trainable(
            module, config.optim, grad_clip=config.optim.grad_clip, total_steps=self.total_steps, device=device
        )
        if self.resume_from is not None:
            self.trainable.load(self.resume_from)

    def fit(self) -> dict[str, float]:
        """Train to the last step, validating and saving on the way; returns the last step's metrics."""
        metrics: dict[str, float] = {}
        with self.tracker:
            self.begin()
            while self.step < self.total_steps:
                metrics = self.train_step()
                if self.val is not None and is_due(self.config.trainer.test_freq, self.step, self.total_steps):
                    metrics["val/loss"] = self.validate(self.val)
                self.tracker.log(metrics, self.step)
                if is_due(self.config.trainer.save_freq, self.step, self.total_steps):
                    self.save()  # after logging: a run killed in between logs the step again, rather than never
        return metrics

    def begin(self) -> None:
        """Load the model, then put the run folder in order: go on from the checkpoint's step, or start anew."""
        self.load_model()
        self.tracker.folder.write_config(self.config)
        if self.resume_from is None:
            self.tracker.start()
        else:
            self.tracker.resume(self.step)
            log.info("going on from %s, step %d of %d", self.resume_from, self.step, self.total_steps)

    def train_step(self) -> dict[str, float]:
        """One optimiser step on the next examples."""
        start = time.perf_counter()
        epoch = self.train.epoch(self.step)
        batch = collate(self.train.batch(self.step))
        total = tensors(batch)["response_mask"].sum()  # of the whole batch: the loss does not depend on the cut

        def loss(rows: DataProto) -> tuple[Tensor, Metrics]:
            return self.negative_log_likelihood(rows).sum() / total, {}

        update = self.trainable.update(batch, loss, self.micro)
        self.step += 1
        self._count_bad_steps(update["bad_step"])
        tokens, seconds = int(tensors(batch)["attention_mask"].sum()), time.perf_counter() - start
        return {
            "training/global_step": self.step,
            "training/epoch": epoch,
            **{f"train/{name}": update[name] for name in ("loss", "lr", "grad_norm", "bad_step")},
            "perf/total_num_tokens": tokens,
            "perf/time_per_step": seconds,
            "perf/throughput": tokens / seconds,
        }

    def validate(self, batches: SFTBatches) -> float:
        """Mean negative log-likelihood per assistant token over all validation examples."""
        loss, tokens = 0.0, 0
        for examples in batches.once():
            batch = collate(examples)
            nll = self.trainable.infer(lambda rows: {"nll": self.negative_log_likelihood(rows)}, batch, self.micro)
            loss += float(nll["nll"].double().sum())
            tokens += int(tensors(batch)["response_mask"].sum())
        return loss / tokens

    def negative_log_likelihood(self, rows: DataProto) -> Tensor:  # (B,)
        """Of the assistant tokens of each example."""
        log_prob = log_probs(self.trainable.module, pack(tensors(rows)))["log_prob"]  # (B, R)
        return -(log_prob * tensors(rows)["response_mask"]).sum(-1)

    def save(self) -> Path:
        """Write `global_step_N`: a model folder with the training state beside it."""

        def write(folder: Path) -> None:
            self.trainable.save(folder)
            self.tokenizer.save_pretrained(folder)
            (folder / STATE).write_text(json.dumps({**self._data_facts(), "bad_steps": self.bad_steps}, indent=1))

        return self.store.save(self.step, write)

    def _read_state(self, folder: Path) -> dict[str, int | bool]:
        """What `save` wrote beside the model; CheckpointError where this run would draw other examples."""
        facts = self._data_facts()
        try:
            state = json.loads((folder / STATE).read_text())
            theirs: dict[str, int | bool] = {name: state[name] for name in (*facts, "bad_steps")}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{folder} is not a checkpoint of `burnish sft`: no readable {STATE}") from error
        for name, value in facts.items():
            if theirs[name] != value:
                raise CheckpointError(
                    f"{folder} was written with {name}={theirs[name]}, this run has {value}: the order of examples "
                    f"would change. Set it as it was, or start afresh with trainer.resume_mode=disable"
                )
        return theirs

    def _data_facts(self) -> dict[str, int | bool]:
        """What the batch of a step depends on."""
        data = self.config.data
        return {
            "data.train_batch_size": data.train_batch_size,
            "data.seed": data.seed,
            "data.shuffle": data.shuffle,
            "number of training examples": len(self.train.dataset),
        }

    def _count_bad_steps(self, bad: float) -> None:
        self.bad_steps = self.bad_steps + 1 if bad else 0
        if bad:
            log.warning("step %d: loss or gradient was NaN or infinite; the step is not applied", self.step)
            self.tracker.event("bad_step", step=self.step)
        if self.bad_steps >= self.config.trainer.max_bad_steps:
            raise BadStepError(
                f"loss or gradient was NaN or infinite in {self.bad_steps} updates in a row, up to step {self.step}. "
                "Lower optim.lr, or look at the examples of these steps; trainer.max_bad_steps sets the limit"
            )


def collate(examples: Sequence[SFTExample]) -> DataProto:
    """Examples as the rows of a padded batch; the prompt of each is what precedes its first assistant token."""
    splits = [int(example.loss_mask.argmax()) for example in examples]
    width_p = max(splits)
    width = width_p + max(len(example) - split for example, split in zip(examples, splits, strict=True))
    input_ids, attention_mask, loss_mask = np.zeros((3, len(examples), width), dtype=np.int64)  # (B, P+R) each
    for b, (example, split) in enumerate(zip(examples, splits, strict=True)):
        where = slice(width_p - split, width_p - split + len(example))
        input_ids[b, where], attention_mask[b, where], loss_mask[b, where] = example.ids, 1, example.loss_mask
    columns = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "prompts": input_ids[:, :width_p],
        "responses": input_ids[:, width_p:],
        "response_mask": loss_mask[:, width_p:],
    }
    return DataProto.from_dict(tensors={name: torch.from_numpy(column) for name, column in columns.items()})


def tensors(batch: DataProto) -> TensorDictBase:
    """The tensor columns, which every batch made here has."""
    assert batch.batch is not None
    return batch.batch


def total_steps(config: SFTConfig, train: SFTBatches) -> int:
    """`trainer.total_training_steps`, or as many as `trainer.total_epochs` take."""
    return config.trainer.total_training_steps or config.trainer.total_epochs * len(train)


def micro_batch(config: SFTConfig) -> MicroBatch:
    """What one pass holds: `micro_batch_size_per_gpu` examples; with `packing`, as many tokens as these may have."""
    count = config.data.micro_batch_size_per_gpu or max(1, TOKENS_PER_PASS // config.data.max_length)
    if config.data.packing:
        return MicroBatch(max_tokens=count * config.data.max_length)
    return MicroBatch(max_sequences=count)


def train(loaded: Loaded[SFTConfig]) -> None:
    """One job of `burnish sft`, its keys checked; whatever else can be wrong is found before a model is loaded."""
    config = loaded.config
    loaded.tell()
    check_files(config, describe)
    _check_context(config)
    pick_device(config.trainer.device)  # a GPU that is not there is told before the rows are read
    seed_torch(config.trainer.seed, deterministic=config.trainer.deterministic)
    tokenizer = load_tokenizer(config.model.tokenizer_path or config.model.path, config.model.trust_remote_code)
    training = _batches(config, config.data.train_files, config.data.train_max_samples, tokenizer)
    validation = None
    if config.data.val_files:
        validation = _batches(config, config.data.val_files, config.data.val_max_samples, tokenizer)
    steps = total_steps(config, training)
    if loaded.flags.plan:
        print(plan(config, training, steps))
        return
    print(explain(config, loaded.explicit))
    with RunFolder(config.trainer.default_local_dir) as folder:
        folder.write_recipe(loaded.given)
        SFTTrainer(config, tokenizer, training, validation, folder).fit()


def plan(config: SFTConfig, training: SFTBatches, steps: int) -> str:
    """What `--plan` prints: the arithmetic of a run."""
    examples = training.dataset
    lengths = [len(examples[i]) for i in range(len(examples))]
    micro = micro_batch(config)
    limit = f"{micro.max_tokens} tokens" if micro.max_tokens else f"{micro.max_sequences} examples"
    return "\n".join(
        [
            f"training examples        {len(lengths)}, {sum(lengths)} tokens, {max(lengths)} in the longest",
            f"examples per step        {config.data.train_batch_size}",
            f"steps per epoch          {len(training)}",
            f"steps in all             {steps}",
            f"one pass holds at most   {limit}",
        ]
    )


def _batches(
    config: SFTConfig, files: Sequence[str], max_samples: int, tokenizer: "PreTrainedTokenizerBase"
) -> SFTBatches:
    data = config.data
    dataset = SFTDataset(files, tokenizer, data, max_samples=max_samples)
    return SFTBatches(dataset, data.train_batch_size, seed=data.seed, shuffle=data.shuffle)


def _check_context(config: SFTConfig) -> None:
    context = read_model_facts(config.model.path).context
    if context is not None and config.data.max_length > context:
        raise ConfigError(
            f"data.max_length={config.data.max_length}, but {config.model.path} has a context of {context} tokens; "
            f"set data.max_length={context} or less"
        )
