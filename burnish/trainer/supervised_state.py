"""What a checkpoint of `burnish sft` or `burnish rm` says about its run: `trainer.json`, beside the model.

A run that resumes with other examples, or in another order, would be another run, so the difference is refused by name.
Other keys may change, and each that did is handed on to be told.
"""

import json
from pathlib import Path
from typing import Any

from burnish.config.supervised import SupervisedConfig
from burnish.errors import CheckpointError
from burnish.trainer.state import key_values

FILE = "trainer.json"
EXAMPLES = "number of training examples"

# Of the keys of `data`, those that make no other training examples. Files may be moved, and rows are counted.
FREE = {
    "data.train_files",
    "data.train_max_samples",
    "data.val_files",
    "data.val_max_samples",
    "data.micro_batch_size_per_gpu",
    "data.packing",
}


def write_state(folder: Path, config: SupervisedConfig, *, command: str, examples: int, bad_steps: int) -> None:
    """Into a checkpoint of `burnish <command>`, which has that many training examples."""
    state = {"command": command, EXAMPLES: examples, "bad_steps": bad_steps, "config": key_values(config)}
    (folder / FILE).write_text(json.dumps(state, indent=1))


def read_state(folder: Path, config: SupervisedConfig, *, command: str, examples: int) -> tuple[int, list[str]]:
    """The bad steps in a row before the checkpoint, and `key: then → now` for each key that has changed since.

    CheckpointError where this run would not go on with the examples of that one.
    """
    try:
        state: dict[str, Any] = json.loads((folder / FILE).read_text())
        theirs: dict[str, Any] = state | state.get("config", {})  # older checkpoints have but a few keys, beside it
        bad_steps = int(state["bad_steps"])
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise CheckpointError(f"{folder} is not a checkpoint of `burnish {command}`: no readable {FILE}") from error
    if (writer := state.get("command", "sft")) != command:  # the oldest do not say, and are of `burnish sft`
        raise CheckpointError(
            f"{folder} is not a checkpoint of `burnish {command}`, but of `burnish {writer}`. Give this run a "
            "trainer.default_local_dir of its own"
        )
    ours = {EXAMPLES: examples} | key_values(config)
    changed = {name: value for name, value in ours.items() if theirs.get(name, value) != value}
    for name, value in changed.items():
        if name == EXAMPLES or (name.startswith("data.") and name not in FREE):
            raise CheckpointError(
                f"{folder} was written with {name}={theirs[name]}, this run has {value}: it would go on with other "
                "examples. Set it as it was, or start afresh with trainer.resume_mode=disable"
            )
    return bad_steps, [f"{name}: {theirs[name]} → {value}" for name, value in changed.items()]
