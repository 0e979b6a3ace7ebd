"""What commands share: required keys, paths, rows and output files, the run folder, resuming, frequencies, optimisers,
checkpoints."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from burnish.config.actor import ALL_PARTS, CheckpointConfig
from burnish.config.generation import EvalConfig, GenerationConfig
from burnish.config.key import keys_of, read, write
from burnish.config.optim import OptimConfig
from burnish.config.ppo import PPOConfig
from burnish.config.rules import Given, at_default, fill
from burnish.config.trainer import RunConfig
from burnish.config.values import show
from burnish.errors import ConfigError

ACTOR, CRITIC = "actor_rollout_ref.actor.checkpoint", "critic.checkpoint"


def require(config: Any, examples: Mapping[str, str]) -> None:
    """Keys without a default that makes sense; `examples` shows a value for each. Home folders are expanded."""
    if missing := [name for name in examples if not read(config, name)]:
        shown = " ".join(f"{name}={examples[name]}" for name in missing)
        raise ConfigError(f"{' and '.join(missing)} must be set, for example {shown}")
    for name, known in keys_of(type(config)).items():
        if known.about.path and (value := read(config, name)):
            expand = os.path.expanduser
            write(config, name, [expand(one) for one in value] if isinstance(value, list) else expand(value))


def rows(config: PPOConfig, given: Given) -> None:
    data = config.data
    data.val_files = data.val_files or []
    if data.dataset_weights is not None:
        weights, files = data.dataset_weights, len(data.train_files)
        if len(weights) != files:
            raise ConfigError(f"data.dataset_weights has {len(weights)} weights for {files} files; give one for each")
        if not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise ConfigError(f"data.dataset_weights={weights}: weights are finite, at least 0 and not all 0")
    if not data.augment.enable:
        for name in sorted({*given.below("data.augment")} - {"data.augment.enable"}):
            given.say(f"{name} has no effect, because data.augment.enable is false")
    for pair in (("curriculum.key", "curriculum.stages"), ("custom_cls.path", "custom_cls.name"),
                 ("sampler.class_path", "sampler.class_name")):  # fmt: skip
        there = [name for name in pair if read(data, name)]
        if len(there) == 1:
            missing = pair[there[0] == pair[0]]
            raise ConfigError(f"data.{there[0]} is set without data.{missing}; give both")


def output_of_generation(config: GenerationConfig) -> None:
    data = config.data
    if not data.output_path.endswith(".parquet"):
        raise ConfigError(f"data.output_path={data.output_path}: the output is a parquet file; end it with .parquet")
    if os.path.realpath(data.output_path) == os.path.realpath(data.path):
        raise ConfigError(
            f"data.output_path={data.output_path} is the file of data.path, which is only read; name another file"
        )


def outputs_of_evaluation(config: EvalConfig) -> None:
    """Metrics go next to the responses where nothing else is set: `out.jsonl.gz` → `out.eval.json`."""
    data, path = config.data, Path(config.data.path)
    own = str(path.with_name(f"{Path(path.name.removesuffix('.gz')).stem}.eval.json"))
    data.output_path = data.output_path or own
    if os.path.realpath(data.output_path) == os.path.realpath(data.path):
        raise ConfigError(
            f"data.output_path={data.output_path} is the file of responses itself, which the metrics would replace; "
            f"name another, for example data.output_path={own}"
        )
    if data.scored_path and os.path.realpath(data.scored_path) == os.path.realpath(data.path):
        raise ConfigError(f"data.scored_path={data.scored_path} is the file of responses itself; name another")
    if data.scored_path and not data.scored_path.endswith(".parquet"):
        raise ConfigError(f"data.scored_path={data.scored_path}: it becomes a parquet file; name it so, ….parquet")


def trainer(section: RunConfig, has_validation: bool, given: Given) -> None:
    if not section.default_local_dir:
        section.default_local_dir = f"outputs/{section.project_name}/{section.experiment_name}"
    for name in ("save_freq", "test_freq"):
        if getattr(section, name) == 0:
            raise ConfigError(f"trainer.{name}=0: every 0 steps is never; use -1 for never")
    if (section.test_freq or 0) > 0 and not has_validation:
        given.say("no validation: data.val_files is not set (trainer.test_freq has no effect)")
    if section.resume_from_path and section.resume_mode != "resume_path":
        if not at_default(section, "resume_mode"):
            raise ConfigError(
                f"trainer.resume_from_path={section.resume_from_path} with trainer.resume_mode={section.resume_mode}: "
                "use trainer.resume_mode=resume_path"
            )
        section.resume_mode = "resume_path"
        given.say("trainer.resume_mode=resume_path, because trainer.resume_from_path is set")
    if section.resume_mode == "resume_path" and not section.resume_from_path:
        raise ConfigError("trainer.resume_mode=resume_path needs trainer.resume_from_path=<folder>/global_step_N")


def optimiser(section: OptimConfig, name: str) -> None:
    if len(section.betas) != 2 or not all(0 <= beta < 1 for beta in section.betas):
        raise ConfigError(f"{name}.betas={section.betas}: must be two numbers of at least 0 and less than 1")


def checkpoint(config: PPOConfig, given: Given) -> None:
    """Refuse parts that no run could use; fill in derived values; warn where no run could resume. A checkpoint holds
    actor and critic, so there is one number of them to keep."""
    keep, critic_keep = config.trainer.max_actor_ckpt_to_keep, config.trainer.max_critic_ckpt_to_keep
    if critic_keep not in (None, keep):
        raise ConfigError(
            f"trainer.max_critic_ckpt_to_keep={critic_keep} with trainer.max_actor_ckpt_to_keep={show(keep)}: a "
            "checkpoint holds actor and critic; set both to the same number, or only trainer.max_actor_ckpt_to_keep"
        )
    actor, critic = config.actor_rollout_ref.actor.checkpoint, config.critic.checkpoint
    fill(critic, async_save=actor.async_save)
    if critic.async_save != actor.async_save:
        raise ConfigError(
            f"{CRITIC}.async_save={show(critic.async_save)} with {ACTOR}.async_save={show(actor.async_save)}: a "
            f"checkpoint holds actor and critic and is written in one piece; leave {CRITIC}.async_save out"
        )
    for name, section in ((ACTOR, actor), (CRITIC, critic)):
        _contents(name, section)
        if section.save_contents == ["hf_model"] and (name == ACTOR or config.critic.enable):
            given.say(f"no run can resume from these checkpoints: {name}.save_contents=[hf_model] leaves out model")


def _contents(name: str, section: CheckpointConfig) -> None:
    saved, loaded = section.save_contents, section.load_contents
    for key, parts in (("save_contents", saved), ("load_contents", loaded or [])):
        if unknown := [part for part in parts if part not in ALL_PARTS]:
            raise ConfigError(
                f"{name}.{key}={show(parts)}: there is no part {unknown[0]!r}; choose among {', '.join(ALL_PARTS)}"
            )
    if "model" not in saved and saved != ["hf_model"]:
        raise ConfigError(
            f"{name}.save_contents={show(saved)}: without model (the weights as training has them) no run can "
            "resume from the rest; add model, or write [hf_model] alone, which can be loaded but not resumed"
        )
    if loaded is None:
        section.load_contents = [part for part in saved if part != "hf_model"] or ["model"]
    elif "model" not in loaded:
        raise ConfigError(
            f"{name}.load_contents={show(loaded)}: a run resumes from the weights of its checkpoint; add model. To "
            "start another run from a checkpoint's Hugging Face folder, name it as the model's path"
        )
