"""`trainer.*` and `ray_init`: how long a run is, where it runs, and what it leaves behind."""

from dataclasses import dataclass
from typing import Any

from burnish.config.key import Keys, key, section

PPO = "trainer/ppo.py"
SETUP = "trainer/setup.py"
TRACKER, FOLDER = "tracking/tracker.py", "tracking/run_folder.py"
WORKER = "workers/model_worker.py"
TRACKED = ("project_name", "experiment_name", "logger")
MACHINES = "several machines"
PROCESSES, RESTART = "trainer/executor.py", "trainer/restart.py"
EXECUTORS = ("auto", "local", "processes", "ray")
PLACEMENT = "config/placement.py"
DEVICES, GPU = ("auto", "cuda", "cpu"), {"gpu": "cuda"}


@dataclass
class AsyncRolloutConfig:
    """Generation that runs ahead of training."""

    enable: bool = key(False, "generate while training", "config/rules/correction.py")
    staleness: int = key(
        0,
        "most training steps that a token may lag behind the weights it trains; 0: generation and training alternate",
        "config/ppo.py",
        low=0,
        high=16,
    )


@dataclass
class ProcessesConfig(Keys, reader=PROCESSES):
    """Worker processes, where there are several."""

    processes_per_gpu: int = key(
        1, "processes that share a GPU and divide its memory; more than one needs NCCL 2.30", low=1, high=16
    )
    worker_timeout: float = key(1800, "several processes: time limit for one call of the workers, in seconds", above=0)
    ray_wait_register_center_timeout: int = key(
        300, "several processes: time limit for all of them to start, in seconds", low=1
    )


@dataclass
class RunConfig(ProcessesConfig, reader=PPO):
    """What every trainer has: length, place, seed, checkpoints and trackers."""

    total_epochs: int = key(1, "passes over the training rows", low=1)
    total_training_steps: int | None = key(None, "total training steps; null: from total_epochs", low=1)
    project_name: str = key("burnish", "name of the project", TRACKER)
    experiment_name: str = key("run", "name of the run within the project", TRACKER)
    logger: list[str] = key(["console"], "where metrics go: console, tensorboard, wandb, mlflow, trackio", TRACKER)
    nnodes: int = key(1, "machines", low=1, later=MACHINES)
    n_gpus_per_node: int | str = key(
        "auto", "processes on this machine, one for each GPU; auto: one", PROCESSES, low=1, choices=("auto",)
    )
    device: str = key("auto", "device; auto: a GPU where there is one", SETUP, choices=DEVICES, spellings=GPU)
    seed: int = key(1, "seed of sampling and of new weights", SETUP, low=0)
    deterministic: bool = key(False, "use deterministic kernels only, so that a run can be repeated bit for bit", SETUP)
    save_freq: int | None = key(None, "steps between checkpoints; null: only after the last step; -1: never", low=-1)
    test_freq: int | None = key(None, "steps between validations; null: only after the last step; -1: never", low=-1)
    resume_mode: str = key(
        "auto",
        "resume from the newest checkpoint (auto), from none (disable), or from resume_from_path",
        choices=("auto", "disable", "resume_path"),
    )
    resume_from_path: str | None = key(None, "checkpoint folder of resume_mode=resume_path", path=True)
    default_local_dir: str = key(None, "run folder; null: outputs/<project_name>/<experiment_name>", FOLDER, path=True)
    keep_best: bool = key(True, "keep the best checkpoint too where older ones are removed", "trainer/checkpoint.py")
    checkpoint_timeout: float = key(1800, "time limit for writing or reading a checkpoint, in seconds", above=0)
    default_hdfs_dir: str | None = key(None, "copy of the run folder", later="copies of checkpoints on HDFS")
    max_restarts: int = key(
        2,
        "restarts in a row, without a new checkpoint in between, of a run that hangs or whose workers died",
        RESTART,
        low=0,
    )
    max_bad_steps: int = key(3, "consecutive NaN or infinite updates before the run stops", low=1)


@dataclass
class TrainerConfig(RunConfig, reader=SETUP):
    """The RL trainer."""

    nnodes: int = key(1, "number of machines; more than one: a Ray cluster at ray_init.address", PLACEMENT, low=1)
    n_gpus_per_node: int | str = key(
        "auto",
        "processes per machine, one for each GPU; auto: one, with executor=processes or ray all GPUs of this machine",
        PLACEMENT,
        low=1,
        choices=("auto",),
    )
    executor: str = key(
        "auto",
        "local: one process; processes: several on this machine; ray: on many machines; auto: what the number of "
        "processes and machines needs",
        choices=EXECUTORS,
    )
    async_rollout: AsyncRolloutConfig = section(AsyncRolloutConfig)
    rollout_dump_freq: int = key(1, "steps between dumps of rollouts; -1: never", PPO, low=-1)
    val_before_train: bool = key(True, "validate before the first step", PPO)
    val_only: bool = key(False, "validate and stop", PPO)
    critic_warmup: int = key(0, "steps that update the critic alone", PPO, low=0)
    max_actor_ckpt_to_keep: int | None = key(None, "number of checkpoints to keep; null: all", PPO, low=1)
    max_critic_ckpt_to_keep: int | None = key(
        None,
        "another name for max_actor_ckpt_to_keep: a checkpoint holds actor and critic",
        "config/rules/run.py",
        low=1,
    )
    rollout_data_dir: str | None = key(
        None, "folder of the rollout dumps; null: rollouts/ in the run folder", FOLDER, path=True
    )
    validation_data_dir: str | None = key(
        None, "folder of the validation dumps; null: validation/ in the run folder", FOLDER, path=True
    )
    log_val_generations: int = key(0, "validation samples shown per validation", low=0)
    balance_batch: bool = key(True, "balance rows over processes by their tokens, not by their number", WORKER)
    resource_pools: dict[str, Any] | None = key(
        None,
        "processes on each node of each pool, and the roles that are not on the first: "
        "{main: [2], judge: [1], roles: {reward_model: judge}}; null: one pool",
        PLACEMENT,
    )
    esi_redundant_time: float = key(
        0, "seconds kept back before a machine expires", inert="checkpoints are written by save_freq alone"
    )


@dataclass
class RayInitConfig(Keys, reader="controller/ray/__init__.py"):
    """How Ray is started or found."""

    num_cpus: int | None = key(
        None, "CPUs of the Ray cluster that the run starts; null: as many as the processes need", low=1
    )
    timeline_json_file: str | None = key(None, "file for Ray's timeline, written when the run ends", path=True)
    address: str | None = key(None, "running Ray cluster to join: host:port of its head, or auto; null: start one here")
