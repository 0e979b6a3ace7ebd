"""The training loop. `fit` reads as the algorithm and names none.

What an estimator or a loss needs (a critic, groups, further outputs of the log-prob pass) it declares. Experience comes
in as whole, scored groups (`experience.py`), workers compute, the controller gives credit (`credit.py`). For another
part, hand another worker class, pool or reward function to the constructor; `setup.py` does so from the configuration.
"""

import contextlib
import gc
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from burnish.agents.check import AgentCheck
from burnish.algorithms.losses import token_choice
from burnish.algorithms.needs import needs_of
from burnish.algorithms.resample import resample
from burnish.algorithms.variance import variance_proxy_metrics
from burnish.config import PPOConfig
from burnish.config.values import show
from burnish.controller import ResourcePoolManager, Role, Worker, WorkerGroup
from burnish.data.dataset import train_dataset, val_dataset
from burnish.data.order import make_order
from burnish.entry.ending import StopRequest
from burnish.errors import BurnishError, CheckpointError, DeadlineError, NothingToLearn, WorkerError, text_of
from burnish.protocol import DataProto
from burnish.rewards.managers import adapt_manager
from burnish.tracking import RunFolder, Tracker
from burnish.tracking.disk import OTHER_RUN
from burnish.tracking.timer import timed
from burnish.tracking.tracker import as_number
from burnish.trainer import checkpoint
from burnish.trainer.augment import Augmentation, make_buffer
from burnish.trainer.checkpoint import CheckpointStore, is_due, step_of
from burnish.trainer.credit import Credit, reward_tokens
from burnish.trainer.experience import Experience, drawn_of
from burnish.trainer.groups import (
    BUSY_S,
    CLOSING_S,
    Passes,
    RemoteRollouts,
    close_within,
    load_models,
    make_groups,
    profiled,
    write_captured,
)
from burnish.trainer.memory import ppo_memory_explained
from burnish.trainer.report import BadUpdates, OnStep, batch_metrics, sample_rows, speed_metrics
from burnish.trainer.reward_model import RewardModel, check_rows
from burnish.trainer.validate import Validator
from burnish.waits import waiting
from burnish.workers.reward_model import ConversationReader
from burnish.workers.rollouts import agent_settings

log = logging.getLogger(__name__)


class PPOTrainer:
    """One RL run: construct it, `init_workers()`, `fit()`."""

    def __init__(
        self,
        config: PPOConfig,
        tokenizer: Any,
        role_worker_mapping: Mapping[str, type[Worker]],
        resource_pool_manager: ResourcePoolManager,
        worker_group_cls: type[WorkerGroup],
        reward_fn: Any,
        val_reward_fn: Any = None,
    ):
        """Reads the data and opens the run folder; no model is loaded. `val_reward_fn` is `reward_fn` if not given."""
        self.config, self.tokenizer = config, tokenizer
        self.role_worker_mapping = role_worker_mapping
        self.resource_pool_manager = resource_pool_manager
        self.worker_group_cls = worker_group_cls
        self.reward_fn, self.val_reward_fn = adapt_manager(reward_fn), adapt_manager(val_reward_fn or reward_fn)
        self.needs = needs_of(config)
        self.groups: dict[str, WorkerGroup] = {}
        self.saved: int | None = None  # the last step whose checkpoint this run wrote, or started from
        self.stop = StopRequest()
        self.unsaved: Mapping[str, Any] | None = None  # where the data stood before a step that was broken off
        self.unvalidated: dict[str, float] | None = None  # metrics of the last step, if its validation was broken off
        self.ending = ""  # why it is being closed
        self.on_step: OnStep | None = None
        self.code = checkpoint.code_digests(config)  # as it is loaded
        self.read_rows()
        folder = RunFolder.of(config.trainer)
        deadline_s = config.trainer.checkpoint_timeout
        if config.trainer.executor != "local":  # a worker that does not write its part is reported first
            deadline_s += config.trainer.worker_timeout
        self.store = CheckpointStore(
            folder.path, config.trainer.max_actor_ckpt_to_keep, deadline_s, config.trainer.keep_best
        )
        self.find_start_and_end()
        if self.resume_from is None and not config.trainer.val_only:
            folder.check_inputs_stay(config)
        self.tracker = Tracker(config.trainer, folder, total_steps=self.total_steps, config=asdict(config))
        self.credit = Credit(config.algorithm, self.tracker.event)
        self.bad_updates = BadUpdates(config.trainer.max_bad_steps, folder.path, self.tracker.event)

    def read_rows(self) -> None:
        """The prompts to train and validate on, each row checked, their order, and room for those made on the way."""
        config, check = self.config, self.reward_fn.check_row
        conversations = ConversationReader(config, self.tokenizer) if config.reward_model.enable else None
        at_once = None if conversations is not None and not config.data.custom_cls.path else check
        self.train_rows = train_dataset(config.data, self.tokenizer, at_once)
        self.val_rows = val_dataset(config.data, self.tokenizer, at_once)
        if conversations is not None:
            by_outcomes = self.needs.process_reward
            check_rows(self.train_rows, self.val_rows, conversations, check, by_outcomes=by_outcomes)
        agents = AgentCheck(agent_settings(config), self.tokenizer)  # each row's loop, tools, interaction, retriever
        for rows in [self.train_rows, *([self.val_rows] if self.val_rows else [])]:
            for i, row in enumerate(rows.known_rows()):
                agents.row(row, partial(rows.where, i))
        agents.finish()
        self.order = make_order(self.train_rows, config.data)
        self.new_prompts = make_buffer(config, self.tokenizer, self.reward_fn)

    def find_start_and_end(self) -> None:
        """The checkpoint to resume from, and the number of steps: as set, or until every prompt was drawn. `end`, the
        prompts to draw in all, is None where steps are set, or dropped groups are replaced by others."""
        trainer, size = self.config.trainer, self.config.data.train_batch_size
        self.run_facts = checkpoint.run_facts(self.config, len(self.train_rows))
        self.resume_from = self.store.to_resume(trainer.resume_mode, trainer.resume_from_path)
        self.step, drawn = 0, 0
        if self.resume_from is not None:
            state = checkpoint.read_state(self.resume_from)
            with checkpoint.restoring(self.resume_from / checkpoint.STATE):
                checkpoint.check_same_run(self.resume_from, state, self.run_facts, self.config.data.train_files)
                self.step, drawn = step_of(self.resume_from), drawn_of(state["experience"])
        prompts, refills = self.order.start(trainer.total_epochs), self.config.algorithm.filter_groups.enable
        self.end = None if trainer.total_training_steps or refills else prompts
        left = math.ceil(prompts / size) - self.step if refills else math.ceil((prompts - drawn) / size)
        self.total_steps = trainer.total_training_steps or self.step + max(left, 0)
        if self.end is not None and self.end < size:
            log.warning("data.train_batch_size=%d, but there are only %d prompts: one step", size, self.end)
        if 0 < self.total_steps <= trainer.critic_warmup:
            log.warning("trainer.critic_warmup=%d: the actor is not trained at all", trainer.critic_warmup)
        steps = self.config.global_profiler.steps or []
        if outside := [step for step in steps if not self.step < step <= self.total_steps]:
            log.warning(
                "global_profiler.steps=%s: this run has the steps %d to %d, so %s is not profiled",
                show(steps), self.step + 1, self.total_steps, show(outside),
            )  # fmt: skip

    def init_workers(self) -> None:
        manager = self.resource_pool_manager
        manager.check_devices(self.worker_group_cls.available_devices(self.config.trainer.device))
        for pool in manager.pools.values():
            pool.device = self.config.trainer.device if pool in manager.model_pools() else "cpu"
        classes = self.role_worker_mapping
        self.groups = groups = make_groups(manager, self.worker_group_cls, classes, self.config, self.total_steps)
        self.policy: Any = groups[Role.ActorRolloutRef]
        self.critic: Any = groups.get(Role.Critic)
        self.process_reward: Any = groups.get(Role.ProcessReward)
        judge: Any = groups.get(Role.RewardModel)  # frozen: it is in no checkpoint
        models = {"actor": self.policy, "critic": self.critic, "process_reward": self.process_reward}
        self.models = {name: group for name, group in models.items() if group is not None}  # what a checkpoint holds
        load_models(manager, groups)
        rollouts: Any = self.policy
        if Role.AgentLoop in groups:
            rollouts = RemoteRollouts(self.policy, groups[Role.AgentLoop], self.config.staleness)
        self.experience = Experience(
            self.config,
            self.train_rows,
            self.order,
            rollouts,
            self.reward_fn,
            self.needs,
            end=self.end,
            last_step=self.total_steps,
            augmentation=Augmentation(self.new_prompts, self.tracker.event),
            reward_model=RewardModel(self.config.reward_model, judge) if judge else None,
            scores_apart=bool(judge) and manager.mapping[Role.RewardModel] != manager.mapping[Role.ActorRolloutRef],
        )
        self.validator: Validator | None = None
        if self.val_rows is not None:
            model = RewardModel(self.config.reward_model, judge, mixes=False) if judge else None
            rows, reward_fn, folder = self.val_rows, self.val_reward_fn, self.tracker.folder
            self.validator = Validator(self.config, rows, rollouts, reward_fn, self.tokenizer, folder, model)

    def fit(self) -> dict[str, float]:
        """Train to the last step, validating and saving on the way; returns the last step's metrics."""
        trainer = self.config.trainer
        named = ppo_memory_explained(self.config, "validation")
        with self.tracker.folder, self.tracker, contextlib.closing(self), older_objects_kept(), named:
            metrics, saving = self.begin(), dict[str, float]()
            while self.step < self.total_steps and not trainer.val_only:
                self.step += 1
                metrics = {"training/global_step": self.step, "training/epoch": self.experience.epoch}
                metrics |= saving  # the time of the checkpoint before this step
                with profiled(self.config, self.step, self.groups), timed(metrics, "step"):
                    before = self.experience.state_dict()
                    try:  # prompts, new weights out, generate, score; old and reference log-probs, values
                        batch, passes = self.experience.draw(self.step, metrics, self.begin_passes)
                        batch = passes.join(batch)
                    except NothingToLearn as error:
                        raise self.saved_before_end(error, before) from error
                    except KeyboardInterrupt:
                        self.unsaved = before
                        raise
                    with self.stop.delayed():  # from here on the step changes what a checkpoint holds
                        if self.process_reward:
                            with timed(metrics, "process_reward"):
                                when = self.config.process_reward.update
                                batch, updates = reward_tokens(batch, self.process_reward, when, self.step)
                                self.bad_updates.note("process_reward", updates, self.step, metrics)
                        with timed(metrics, "adv"):
                            batch = self.credit(batch, metrics)
                        with timed(metrics, "describe"):
                            metrics |= self.describe(batch)
                        sent = self.resampled(batch, metrics).select(non_tensor_batch_keys=["uid"])  # for updates
                        if self.critic:
                            with timed(metrics, "update_critic"):
                                updates = self.critic.update_critic(sent, self.step)
                                self.bad_updates.note("critic", updates, self.step, metrics)
                        if self.step > trainer.critic_warmup:
                            with timed(metrics, "update_actor"):
                                updates = self.policy.update_actor(sent, self.step)
                                self.bad_updates.note("actor", updates, self.step, metrics)
                    self.credit.correction.watch(metrics, self.step)
                    validates = self.validator and is_due(trainer.test_freq, self.step, self.total_steps)
                    if self.validator and validates and not self.stop.asked:
                        with timed(metrics, "testing"), self.stop.breaks():
                            metrics |= self.validator(self.step)
                with self.stop.delayed():
                    metrics |= speed_metrics(batch, metrics, self.resource_pool_manager.n_processes())
                    if "sum_pi_squared" in batch.batch:  # how noisy the gradient is
                        metrics |= variance_proxy_metrics(batch.batch, metrics.get("actor/grad_norm"))
                    self.note_restarts(metrics)
                    if validates and self.stop.asked:  # the resumed run validates first
                        self.unvalidated = {name: as_number(name, value) for name, value in metrics.items()}
                    else:  # before saving: a resumed run has the lines up to its checkpoint
                        self.tracker.log(metrics, self.step)
                with self.stop.breaks():
                    if self.on_step and self.on_step(self.step, metrics, partial(sample_rows, batch, self.tokenizer)):
                        self.total_steps = self.step
                if self.stop.asked:
                    self.total_steps = self.step  # the last: it is saved
                saving = {}
                self.note_saved(wait=False)
                if is_due(trainer.save_freq, self.step, self.total_steps):
                    with timed(saving, "save_checkpoint"):
                        self.save()
            self.note_saved(wait=True)
            if self.stop.asked:
                raise KeyboardInterrupt
        return metrics

    def begin(self) -> dict[str, float]:
        """Resume from a checkpoint where there is one; validate first where that is asked for."""
        trainer = self.config.trainer
        if self.resume_from is not None:
            self.load(self.resume_from)
        if trainer.val_only:
            self.tracker.append()
        elif self.resume_from is not None:
            self.tracker.resume(self.step)
        else:
            self.tracker.start()
        self.tracker.folder.write_config(self.config)
        is_logged = self.tracker.health.history.step == self.step  # by a run that resumed here before this one
        if self.unvalidated is not None and not trainer.val_only and not is_logged:
            self.tracker.log(self.unvalidated | (self.validator(self.step) if self.validator else {}), self.step)
        self.unvalidated = None
        metrics: dict[str, float] = {}
        if self.validator and (trainer.val_only or (trainer.val_before_train and self.resume_from is None)):
            with timed(metrics, "testing"):
                metrics |= self.validator(self.step)
            self.note_restarts(metrics)
            self.tracker.log(metrics, self.step)
        return metrics

    def saved_before_end(self, error: NothingToLearn, before: Mapping[str, Any]) -> NothingToLearn:
        """Nothing is left to learn from in this step, perhaps because all prompts are solved: save what was learned."""
        self.save_unchanged(before)
        kept = f". What was learned is in {self.store.folder(self.step)}" if self.step else ""
        return NothingToLearn(f"{error}{kept}")

    def save_unchanged(self, before: Mapping[str, Any]) -> None:
        """Save the step before this one, which has changed nothing yet but its place in the data."""
        self.experience.load_state_dict(before)
        self.step -= 1
        self.note_saved(wait=True)
        if self.step and self.saved != self.step:
            self.save()
            self.note_saved(wait=True)

    def save_stopped(self) -> None:
        if self.unsaved is not None and self.saved != self.step - 1 and self.config.trainer.save_freq != -1:
            self.save_unchanged(self.unsaved)
            self.step += 1  # the one that was broken off

    def reads_old_log_probs(self) -> bool:
        """Whether anything asks for log-probs before the update. With one update a step, it computes them itself."""
        actor = self.config.actor_rollout_ref.actor
        several = actor.ppo_epochs > 1 or self.config.data.train_batch_size > actor.ppo_mini_batch_size
        chooses = token_choice(actor.policy_loss.loss_mode) is not None  # tokens, by their ratio over the whole batch
        return several or chooses or self.config.algorithm.pf_ppo.enable or self.credit.reads_old_log_probs

    def begin_passes(self, batch: DataProto, metrics: dict[str, float]) -> Passes:
        """Begin what anything reads of: `old_log_probs` with what else the estimator asked of that pass (the rollout's
        own where it is bypassed), `ref_log_prob` and `values`."""
        passes = Passes(batch, metrics)
        if self.reads_old_log_probs() and self.config.algorithm.rollout_correction.bypass_mode:
            batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"]
        elif self.reads_old_log_probs():
            passes.begin("old_log_prob", self.policy.compute_log_prob.start, self.credit.needs.outputs)
        if self.config.reads_reference:
            passes.begin("ref", self.policy.compute_ref_log_prob.start)
        if self.critic:
            passes.begin("values", self.critic.compute_values.start)
        return passes

    def resampled(self, batch: DataProto, metrics: dict[str, float]) -> DataProto:
        """What is trained on: the batch, or rows of it drawn by their score."""
        config = self.config.algorithm.pf_ppo
        if not config.enable:
            return batch
        random = np.random.default_rng([self.config.trainer.seed, self.step])
        rows = resample(batch.batch["token_level_scores"].sum(-1).numpy(), config, random)
        metrics["pf_ppo/distinct_ratio"] = len(np.unique(rows)) / len(rows)
        drawn = batch[rows]
        drawn.non_tensor_batch["uid"] = np.arange(len(rows))  # mini-batches are cut by rows: whole groups are dropped
        return drawn

    def note_restarts(self, metrics: Mapping[str, float]) -> None:
        """Write down that rollout engines were lost and replaced, while answers were generated or validated."""
        counts = {
            name: sum(metrics.get(f"{kind}/{name}", 0.0) for kind in ("failures", "val-failures"))
            for name in ("replica_restarts", "requests_again")
        }
        if counts["replica_restarts"]:
            self.tracker.event("replica_restart", step=self.step, **counts)

    def describe(self, batch: DataProto) -> dict[str, float]:
        """What the batch looked like; its samples go to the run folder."""
        every, metrics = self.config.trainer.rollout_dump_freq, batch_metrics(batch, self.config, self.step - 1)
        if every > 0 and self.step % every == 0:  # last: the thread that writes them takes the time of this one
            self.tracker.write_rollouts(self.step, sample_rows(batch, self.tokenizer))
        return metrics

    def save(self) -> None:
        """Write `global_step_<step>`; with `checkpoint.async_save` it is copied here, and written behind training."""
        state = {
            "step": self.step,
            "experience": self.experience.state_dict(),
            **self.credit.state_dict(),
            "bad_steps": self.bad_updates.in_a_row,
            "unvalidated": self.unvalidated,
            "run": self.run_facts,
            "config": checkpoint.key_values(self.config) | self.code,
        }
        text = json.dumps(state, indent=1)  # as it is now, to be written at any later time

        def write(save: Callable[[WorkerGroup, Path], object], folder: Path) -> None:
            for name, group in self.models.items():
                save(group, folder / name)
            checkpoint.link_model_files(folder, "actor")
            (folder / checkpoint.STATE).parent.mkdir()
            (folder / checkpoint.STATE).write_text(text)

        quality = self.tracker.health.history.quality()
        self.note_saved(wait=True)
        self.tracker.folder.flush()
        if self.config.actor_rollout_ref.actor.checkpoint.async_save:
            with checkpoint.disk_errors(self.store.folder(self.step)):
                for group in self.models.values():
                    group.capture_checkpoint()
            self.store.save_behind(self.step, partial(write, write_captured), quality)
        else:
            write_now = partial(write, lambda group, folder: group.save_checkpoint(folder))
            self.store.save_behind(self.step, write_now, quality)
            self.note_saved(wait=True)

    def note_saved(self, *, wait: bool) -> None:
        """Take notice of a checkpoint that was written behind training; raises what kept it from being complete."""
        folder = self.store.finished(wait=wait)
        if folder is not None:
            self.saved = step_of(folder)
            best = self.tracker.health.history.best = step_of(self.store.best(self.saved) or folder)
            self.tracker.event("checkpoint", step=self.saved, best=best)

    def load(self, folder: Path) -> None:
        """Resume from a checkpoint as if the run had never stopped; logs what is different this time."""
        state = checkpoint.read_state(folder)
        is_over = self.step >= self.total_steps and not self.config.trainer.val_only
        self.unvalidated = state.get("unvalidated")
        # The last checkpoint may have been saved without what training needs.
        models = {} if is_over and self.unvalidated is None else self.models
        if missing := [name for name in models if not (folder / name).is_dir()]:
            raise CheckpointError(
                f"{folder} has no {missing[0]}: it was saved by an estimator that needs none. Start another run "
                f"from its weights with {checkpoint.MODEL}={folder} {OTHER_RUN}"
            )
        for name, group in models.items():
            with waiting("checkpoint", "the trainer", f"reading checkpoint {folder / name}", self.store.deadline_s):
                group.load_checkpoint(folder / name)
        if folder.resolve() == self.store.folder(self.step).resolve():
            self.saved = self.step
        log.info("resuming from %s: step %d of %d", folder, self.step, self.total_steps)
        for change in checkpoint.changed_keys(state["config"], self.config, self.code):
            log.warning("changed since that checkpoint: %s", change)
        if is_over:
            log.warning(
                "the run is at its last step already: nothing is trained. Raise trainer.total_epochs or "
                "trainer.total_training_steps, or start another run with %s",
                OTHER_RUN,
            )
        with checkpoint.restoring(folder / checkpoint.STATE):
            self.experience.load_state_dict(state["experience"])
            self.credit.load_state_dict(state)
            self.bad_updates.in_a_row |= state["bad_steps"]

    def close(self) -> None:
        """End what workers and reward managers started, once the checkpoint being written is complete. A failure rises
        after all was tried, unless the run has failed already: that error must not be replaced."""
        error, failures = sys.exception(), list[Exception]()
        has_failed = error is not None
        self.ending = "all steps are done" if error is None else f"{type(error).__name__}: {text_of(error)}"
        with_ends = [self.groups[role] for role in (Role.AgentLoop, Role.ActorRolloutRef) if role in self.groups]
        patience = BUSY_S if has_failed else CLOSING_S
        ends: list[Callable[[], object]] = [partial(self.note_saved, wait=True)]
        ends += [partial(close_within, patience, group) for group in with_ends]
        ends += [self.save_stopped, self.reward_fn.close, self.val_reward_fn.close] + [
            group.shutdown for group in self.groups.values()
        ]
        for end in ends:
            try:
                end()
            except Exception as error:  # noqa: BLE001 (raised or logged below)
                failures.append(error)
        for failure in failures:
            if not has_failed:
                raise failure
            if not isinstance(failure, WorkerError | DeadlineError):  # workers that died, or are still busy
                log.error("%s", failure, exc_info=None if isinstance(failure, BurnishError) else failure)


@contextlib.contextmanager
def older_objects_kept() -> Iterator[None]:
    """Leave objects that are there now out of Python's garbage collections until the end of the block: libraries bring
    some 400,000 containers, which take a third of a second again and again while the device waits."""
    gc.collect()  # what is garbage by now would be kept with them
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
