"""Wiring: from a loaded configuration to a `PPOTrainer` that is ready to fit.

What can be wrong with keys, files, rows and the reward function is found here, before a model is loaded. `prepare` and
`build` are also the way in for your own program; `train` is what `burnish ppo` does with the trainer.
"""

import functools
import logging
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from burnish.algorithms.needs import needs_of
from burnish.config import PPOConfig
from burnish.config.build import explain
from burnish.config.checks import check_files, check_heads, check_model
from burnish.config.finalise import finalise
from burnish.config.fit import advice
from burnish.config.load import Loaded, libraries
from burnish.config.placement import AGENT_LOOP, AGENTS, agent_processes, pools_of
from burnish.config.plan import plan_micro_batches, plan_numbers, plan_table
from burnish.config.ppo import CRITIC_MODEL, REWARD_MODEL
from burnish.config.rules.batch import fit_to_rows
from burnish.config.rules.cluster import devices
from burnish.config.rules.models import without_gpu
from burnish.controller import ResourcePoolManager, Role, Worker, WorkerGroup, processes
from burnish.controller.local import LocalWorkerGroup
from burnish.data.files import describe
from burnish.engine.seeding import seed_torch
from burnish.entry.ending import terminated_as_interrupted
from burnish.errors import ModelError, OutOfMemory, WorkerDied, WorkersLate
from burnish.literal import print_text
from burnish.models.adapters import initial_adapter
from burnish.models.device import dtype_on, gpus, pick_device
from burnish.models.facts import ModelFacts, read_model_facts
from burnish.models.folder import resolve_path
from burnish.models.loading import check_reward_model, load_tokenizer, naming
from burnish.rewards.managers import find_manager, load_manager
from burnish.rewards.scoring import Scoring
from burnish.trainer import nsys
from burnish.trainer.checkpoint import MODEL, STATE
from burnish.trainer.executor import device_memory
from burnish.trainer.memory import ppo_memory_explained
from burnish.trainer.ppo import PPOTrainer
from burnish.trainer.report import OnStep
from burnish.trainer.restart import Restarts
from burnish.trainer.stage import choose_folder
from burnish.workers.actor_rollout_ref import ActorRolloutRefWorker
from burnish.workers.critic import CriticWorker
from burnish.workers.process_reward import ProcessRewardWorker
from burnish.workers.reward_model import RewardModelWorker, other_ids

log = logging.getLogger(__name__)


def run(loaded: Loaded[PPOConfig], on_step: OnStep | None = None) -> None:
    config = loaded.config
    rows, facts = check(loaded)
    loaded.log_notices()
    if loaded.flags.plan:
        memory = planned_memory(loaded)
        print_text(plan_table(plan_numbers(config, rows, facts, needs_of(config), memory)))
        if too_much := advice(config, facts, memory, needs_of(config)):
            raise OutOfMemory(f"does not fit: {too_much}")
        return
    print_text(explain(config, loaded.explicit))
    trainer = train(config, loaded.given, on_step)
    log.info("done, %d steps; %s", trainer.step, newest(trainer))


def train(config: PPOConfig, given: dict[str, Any], on_step: OnStep | None = None) -> PPOTrainer:
    """Train to the end and hand back the trainer; `given` are the keys that were set, for the run's recipe. If workers
    died or hang, or the process does, the run continues from its newest checkpoint (`restart.py`)."""
    restarts = Restarts(config)
    while True:
        trainer = build(restarts.resumed(config))
        trainer.on_step, steps = on_step, trainer.total_steps
        if config.trainer.executor == "local":
            trainer.tracker.watchdog.on_hang = functools.partial(restarts.on_hang, trainer)
        try:
            trainer.tracker.folder.write_recipe(given)
            with terminated_as_interrupted():
                with ExitStack() as stack:  # `fit` closes both; workers that cannot be made must not leave them open
                    stack.enter_context(trainer.tracker)
                    stack.enter_context(closing(trainer))
                    with ppo_memory_explained(config, "loading the models"):
                        trainer.init_workers()
                    stack.pop_all()
                restarts.write_event(trainer)
                trainer.fit()
            return trainer
        except KeyboardInterrupt:
            log.warning("stopped in step %d of %d; %s", trainer.step, steps, newest(trainer))
            raise
        except (WorkerDied, WorkersLate) as error:
            if config.trainer.executor == "local":
                raise
            restarts.note(error, trainer)
        finally:
            disconnect(trainer.worker_group_cls)


def newest(trainer: PPOTrainer) -> str:
    folder = trainer.store.latest()
    if folder is None:
        return f"there is no checkpoint yet (trainer.save_freq says when); the run folder is {trainer.store.root}"
    return f"the newest checkpoint is {folder}"


def prepare(loaded: Loaded[PPOConfig]) -> tuple[int, dict[str, ModelFacts]]:
    """Finish the configuration and `check` it: what a program calls between `load_ppo` and `build`."""
    loaded.notices += finalise(loaded.config, loaded.explicit, needs_of(loaded.config))
    return check(loaded)


def check(loaded: Loaded[PPOConfig]) -> tuple[int, dict[str, ModelFacts]]:
    """The finished configuration against the files and the models; returns training rows, and sizes by model key."""
    config, read_facts = loaded.config, functools.cache(read_model_facts)
    find_manager(config.reward_manager, config.reward_model.reward_manager)
    rows, facts = check_files(config, describe), {}
    loaded.notices += fit_to_rows(config, rows)
    choose_folder(loaded, MODEL, STATE)
    for key, model in config.models.items():
        with naming(f"{key}.path"):
            facts[key] = read_facts(model.path)
        with naming(f"{key}.lora_adapter_path"):
            if adapter := initial_adapter(model):
                model.lora_rank = adapter.rank
        if key == REWARD_MODEL:
            check_reward_model(model)
        loaded.notices += check_model(config, key, facts[key])
        check_heads(config, key, facts[key])
    memory, kind = planned_memory(loaded), config.trainer.device
    elsewhere = loaded.flags.gpu_memory is not None  # on as many GPUs as are asked for, whatever this machine has
    count = sum(pool.processes for pool in pools_of(config)) if elsewhere else gpus(kind)
    loaded.notices += devices(config, loaded.explicit, count)
    if config.trainer.processes_per_gpu > 1 and count and not elsewhere:
        processes.check_shared_gpus(config.trainer.processes_per_gpu)
    for model in config.models.values():
        model.dtype = dtype_on(None if elsewhere else pick_device(kind), model.dtype)
    loaded.notices += plan_micro_batches(config, facts, memory) + (without_gpu(config) if memory is None else [])
    return rows, facts


def planned_memory(loaded: Loaded[PPOConfig]) -> int | None:
    """Bytes of a GPU that one process has, as it is here or as --gpu-memory says; None on a CPU."""
    trainer, said = loaded.config.trainer, loaded.flags.gpu_memory
    return said // trainer.processes_per_gpu if said else device_memory(trainer)


def build(config: PPOConfig) -> PPOTrainer:
    """The trainer of a finished configuration, with the executor that starts its workers."""
    seed_torch(config.trainer.seed, deterministic=config.trainer.deterministic)
    custom, rules = config.custom_reward_function, config.reward_model
    scoring = Scoring.from_config(custom, config.reward, rules, config.data.reward_fn_key)
    scoring.validate()
    model = config.actor_rollout_ref.model
    for key, wanted in config.models.items():  # missing weights are reported before the data is read
        with naming(f"{key}.path"):
            resolve_path(wanted.path)
    tokenizer = load_tokenizer(model.tokenizer_path or model.path, model.trust_remote_code)
    workers: dict[str, type[Worker]] = {}
    if config.reward_model.enable:
        workers[Role.RewardModel] = RewardModelWorker  # first: its errors come before the policy is loaded
    workers[Role.ActorRolloutRef] = ActorRolloutRefWorker
    if config.critic.enable:
        critic = config.critic.model
        theirs = load_tokenizer(critic.tokenizer_path or critic.path, critic.trust_remote_code)
        if other := other_ids(theirs, tokenizer):
            raise ModelError(
                f"{CRITIC_MODEL}.path={critic.path}: it reads the policy's tokens, but its tokenizer has other ids for "
                f"{len(other)} of them, such as {other[0]!r}; choose a model with the policy's tokenizer"
            )
        workers[Role.Critic] = CriticWorker
    if config.process_reward.enable:
        workers[Role.ProcessReward] = ProcessRewardWorker
    chosen = config.reward_manager, rules
    reward_fn = load_manager(*chosen, tokenizer, 0, scoring, config)
    val_reward_fn = load_manager(*chosen, tokenizer, config.trainer.log_val_generations, scoring, config)
    manager, group = pools(config, workers), executor(config)
    try:
        trainer = PPOTrainer(config, tokenizer, workers, manager, group, reward_fn, val_reward_fn)
        for what, rows in (("data.train_files", trainer.train_rows), ("data.val_files", trainer.val_rows)):
            scoring.report_truths(what, rows.known_rows() if rows else [])
        return trainer
    except BaseException:
        disconnect(group)
        raise


def pools(config: PPOConfig, workers: dict[str, type[Worker]]) -> ResourcePoolManager:
    """The pools that the roles of `workers` run on; where there are several processes, also one for agent loops, whose
    class it adds."""
    device, spec, mapping = config.trainer.device, dict[str, list[int]](), dict[str, str]()
    for pool in pools_of(config):
        spec[pool.name] = list(pool.on_nodes)
        mapping |= dict.fromkeys((role for role in workers if role in pool.roles), pool.name)
    if config.trainer.executor == "local":
        return ResourcePoolManager(spec, mapping, device)
    from burnish.workers.rollouts import AgentLoopWorker

    workers[AGENT_LOOP] = AgentLoopWorker
    manager = ResourcePoolManager(spec | {AGENTS: agent_processes(config)}, mapping | {AGENT_LOOP: AGENTS}, device)
    manager.pools[AGENTS].device = "cpu"
    return manager


def executor(config: PPOConfig) -> type[WorkerGroup]:
    """How workers are made and called: in this process, in others of this machine, or by a Ray."""
    trainer = config.trainer
    if trainer.executor == "local":
        return LocalWorkerGroup
    folder = Path(trainer.default_local_dir)
    settings: dict[str, Any] = {
        "logs": folder / "logs", "deadline_s": trainer.worker_timeout,
        "start_deadline_s": trainer.ray_wait_register_center_timeout, "run": folder, "libraries": libraries(config),
    }  # fmt: skip
    if trainer.executor == "processes":
        return processes.start(per_gpu=trainer.processes_per_gpu, **settings)
    from burnish.controller.ray import connect

    count = sum(pool.processes for pool in pools_of(config)) + sum(agent_processes(config))
    return connect(config.ray_init, processes=count, under=nsys.workers(config), **settings)


def disconnect(group: type[WorkerGroup]) -> None:
    """End what `executor` started; nothing where workers are in this process."""
    if leave := getattr(group, "disconnect", None):
        leave()
