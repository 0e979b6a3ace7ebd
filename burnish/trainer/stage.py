"""Which run folder a run has: the second stage of a curriculum does not resume the first.

A run whose folder holds checkpoints of a run on other training files that started from another model is another stage
under the same name. It gets the folder `<folder>-2`, the third one `<folder>-3`, and so on. The same command finds its
stage again. Any other difference is no new stage: a run with more epochs, other keys or its model in another place
resumes, and `checkpoint.check_same_run` refuses what cannot.
"""

import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

from burnish.config import Loaded
from burnish.config.key import read
from burnish.errors import CheckpointError
from burnish.models.folder import fingerprint, read_json
from burnish.trainer.checkpoint import restoring

DATA = ("data.train_files", "data.train_max_samples")


def choose_folder(loaded: Loaded[Any], model: str, state: str) -> None:
    """Name the folder of a further stage in the configuration, with a notice. `model` is the key of the model that the
    run starts from, `state` the file in a checkpoint that has the keys and facts of its run."""
    config, trainer = loaded.config, loaded.config.trainer
    if trainer.resume_mode != "auto":
        return
    first, name = trainer.default_local_dir.rstrip("/"), trainer.experiment_name
    for number in itertools.count(2):
        if not _holds_another_stage(Path(trainer.default_local_dir).expanduser(), config, model, state):
            break
        trainer.default_local_dir, trainer.experiment_name = f"{first}-{number}", f"{name}-{number}"
    if trainer.experiment_name == name:
        return
    loaded.given["trainer.experiment_name"] = trainer.experiment_name
    if "trainer.default_local_dir" in loaded.given:
        loaded.given["trainer.default_local_dir"] = trainer.default_local_dir
    loaded.notices.append(
        f"{first} holds a run on other data.train_files that started from another {model}, so the folder of this run "
        f"is {trainer.default_local_dir}; trainer.experiment_name names it"
    )


def _holds_another_stage(folder: Path, config: Any, model: str, state: str) -> bool:
    with suppress(CheckpointError):  # what cannot be read is reported where the run resumes from it
        for file in sorted(folder.glob(f"global_step_*/{state}"))[:1]:  # all are of one run
            theirs = read_json(file, CheckpointError)
            with restoring(file):
                values = {name: read(config, name) for name in DATA}
                keys, start = theirs["config"], theirs["run"][model]
                has_other_data = any(keys.get(name, now) != now for name, now in values.items())
            return has_other_data and start != fingerprint(read(config, model))
    return False
