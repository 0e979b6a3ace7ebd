"""The state of the controller of `burnish ppo`: `data/trainer.json` of a checkpoint.

Besides the state itself (position in the data, prompts that wait, KL coefficient, …) it holds the facts that make this
run this run: which prompts are drawn, and which model it started from. A run that resumes under other facts would be
another run, so the difference is named instead.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from burnish.config import PPOConfig
from burnish.config.key import keys_of, read
from burnish.errors import CheckpointError
from burnish.models.folder import fingerprint

FILE = "data/trainer.json"
MODEL, PROCESS_REWARD = "actor_rollout_ref.model.path", "process_reward.model.path"
PLANNED = "enable_gradient_checkpointing"  # planned from the device's memory; it changes no result
PARTS = ("experience", "kl", "correction", "bad_steps", "run", "config")


def run_facts(config: PPOConfig, rows: int) -> dict[str, Any]:
    """What must be the same for a resumed run to be the same run, by the key that says it."""
    data, sampler, curriculum = config.data, config.data.sampler, config.data.curriculum
    process_reward = config.process_reward
    augment = asdict(data.augment) if data.augment.enable else dict.fromkeys(asdict(data.augment))
    return {
        "rows of data.train_files": rows,
        "data.train_batch_size": data.train_batch_size,
        "data.seed": data.seed,
        "data.shuffle": data.shuffle,
        "data.dataset_weights": data.dataset_weights,
        "data.curriculum": {"key": curriculum.key, "stages": curriculum.stages},
        "data.sampler": {"class_path": sampler.class_path, "class_name": sampler.class_name},
        **{f"data.augment.{name}": value for name, value in augment.items()},
        "trainer.seed": config.trainer.seed,
        MODEL: fingerprint(config.actor_rollout_ref.model.path),
        **({PROCESS_REWARD: fingerprint(process_reward.model.path)} if process_reward.enable else {}),
    }


def changed_keys(theirs: Mapping[str, Any], config: PPOConfig) -> list[str]:
    """`key: then → now` for each key whose value is not the one the checkpoint was saved with."""
    ours = key_values(config)
    return [f"{name}: {theirs[name]} → {value}" for name, value in ours.items() if theirs.get(name, value) != value]


def key_values(config: Any) -> dict[str, Any]:
    """The keys of a command's configuration with their values, as they read back from JSON; without PLANNED."""
    names = [name for name in keys_of(type(config)) if name.rpartition(".")[2] != PLANNED]
    values: dict[str, Any] = json.loads(json.dumps({name: read(config, name) for name in names}))
    return values


def as_text(state: Mapping[str, Any]) -> str:
    """The state as it is now, to be written at any later time."""
    return json.dumps(state, indent=1)


def write_state(folder: Path, text: str) -> None:
    """Write what `as_text` made of the state into a checkpoint folder."""
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_text(text)


def read_state(folder: Path) -> dict[str, Any]:
    """The state in a checkpoint folder; CheckpointError where it is not whole."""
    path = folder / FILE
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        missing = [name for name in PARTS if name not in state]
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} is not a checkpoint of `burnish ppo`: it has no {FILE}") from error
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); resume from another step") from error
    if missing:
        raise CheckpointError(f"{path} is damaged (no {', '.join(missing)} in it); resume from another step")
    return state


def check_same_run(folder: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """CheckpointError that names what differs between the run that was saved and the one that resumes."""
    ours = json.loads(json.dumps(ours))  # as it would be read back
    for name, value in ours.items():
        if name not in theirs or theirs[name] == value:
            continue
        if name in (MODEL, PROCESS_REWARD):
            raise CheckpointError(
                f"{folder} is a checkpoint of another model: the weights at {name} are not those its run started "
                "from. Name that model again, or start a new run with trainer.default_local_dir=<another folder>"
            )
        raise CheckpointError(
            f"{folder} was saved with {name}={theirs[name]}, and this run has {value}: it would continue with other "
            f"prompts. Set it back, or start over with trainer.default_local_dir=<another folder> {MODEL}={folder}"
        )
