"""What all trainers share: required keys, paths, the run folder, resuming, frequencies, optimisers."""

import os
from collections.abc import Mapping
from typing import Any

from burnish.config.key import keys_of, read, write
from burnish.config.optim import OptimConfig
from burnish.config.rules.given import Given
from burnish.config.trainer import RunConfig, TrainerConfig
from burnish.config.values import show
from burnish.errors import ConfigError


def expand_paths(config: Any) -> None:
    """`~` in every key that holds a path."""
    for name, known in keys_of(type(config)).items():
        value = read(config, name)
        if known.about.path and value:
            write(
                config,
                name,
                [*map(os.path.expanduser, value)] if isinstance(value, list) else os.path.expanduser(value),
            )


def require(config: Any, examples: Mapping[str, str]) -> None:
    """Keys without a default that makes sense; `examples` shows a value for each."""
    missing = [name for name in examples if not read(config, name)]
    if missing:
        shown = " ".join(f"{name}={examples[name]}" for name in missing)
        raise ConfigError(f"{' and '.join(missing)} must be set, for example {shown}")


def trainer(section: RunConfig, has_validation: bool, given: Given) -> None:
    """The run folder, resuming, and frequencies that can be kept."""
    if not section.default_local_dir:
        section.default_local_dir = f"outputs/{section.project_name}/{section.experiment_name}"
    for name in ("save_freq", "test_freq"):
        if getattr(section, name) == 0:
            raise ConfigError(f"trainer.{name}=0: every 0 steps is never; use -1 for never")
    if (section.test_freq or 0) > 0 and not has_validation:
        given.say("no validation: data.val_files is not set (trainer.test_freq has no effect)")
    if section.resume_from_path and section.resume_mode != "resume_path":
        if "trainer.resume_mode" in given:
            raise ConfigError(
                f"trainer.resume_from_path={section.resume_from_path} with trainer.resume_mode={section.resume_mode}: "
                "use trainer.resume_mode=resume_path"
            )
        section.resume_mode = "resume_path"
        given.say("trainer.resume_mode=resume_path, because trainer.resume_from_path is set")
    if section.resume_mode == "resume_path" and not section.resume_from_path:
        raise ConfigError("trainer.resume_mode=resume_path needs trainer.resume_from_path=<folder>/global_step_N")


def kept_checkpoints(section: TrainerConfig) -> None:
    """A checkpoint holds actor and critic, so there is one number of them to keep."""
    actor, critic = section.max_actor_ckpt_to_keep, section.max_critic_ckpt_to_keep
    if critic is not None and critic != actor:
        raise ConfigError(
            f"trainer.max_critic_ckpt_to_keep={critic} with trainer.max_actor_ckpt_to_keep={show(actor)}: a checkpoint "
            "holds actor and critic; set both to the same number, or only trainer.max_actor_ckpt_to_keep"
        )


def optimiser(section: OptimConfig, name: str) -> None:
    """Adam's two decay rates."""
    if len(section.betas) != 2 or not all(0 <= beta < 1 for beta in section.betas):
        raise ConfigError(f"{name}.betas={section.betas}: must be two numbers of at least 0 and less than 1")
