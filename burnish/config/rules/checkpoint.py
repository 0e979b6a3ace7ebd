"""Checkpoints: which parts of a model are written and read, and whether training goes on meanwhile."""

from burnish.config.actor import ALL_PARTS, CheckpointConfig
from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given
from burnish.config.values import show
from burnish.errors import ConfigError

ACTOR, CRITIC = "actor_rollout_ref.actor.checkpoint", "critic.checkpoint"


def checkpoint(config: PPOConfig, given: Given) -> None:
    """Refuse parts that no run could use; fill what follows from other keys; say where no run could go on from."""
    actor, critic = config.actor_rollout_ref.actor.checkpoint, config.critic.checkpoint
    if critic.async_save is None:
        critic.async_save = actor.async_save
    if critic.async_save != actor.async_save:
        raise ConfigError(
            f"{CRITIC}.async_save={show(critic.async_save)} with {ACTOR}.async_save={show(actor.async_save)}: a "
            f"checkpoint holds actor and critic, and is written at once; leave {CRITIC}.async_save out"
        )
    for name, section in ((ACTOR, actor), (CRITIC, critic)):
        _contents(name, section)
        if section.save_contents == ["hf_model"] and (name == ACTOR or config.critic.enable):
            given.say(f"no run can go on from these checkpoints: {name}.save_contents=[hf_model] leaves out model")


def _contents(name: str, section: CheckpointConfig) -> None:
    saved, loaded = section.save_contents, section.load_contents
    for key, parts in (("save_contents", saved), ("load_contents", loaded or [])):
        if unknown := [part for part in parts if part not in ALL_PARTS]:
            raise ConfigError(
                f"{name}.{key}={show(parts)}: there is no part {unknown[0]!r}; choose among {', '.join(ALL_PARTS)}"
            )
    if "model" not in saved and saved != ["hf_model"]:
        raise ConfigError(
            f"{name}.save_contents={show(saved)}: without model (the weights as training has them) no run can go on "
            "from the rest; add model, or write [hf_model] alone, which is to be loaded but not resumed"
        )
    if loaded is None:
        section.load_contents = [part for part in saved if part != "hf_model"] or ["model"]
    elif "model" not in loaded:
        raise ConfigError(
            f"{name}.load_contents={show(loaded)}: a run goes on from the weights of its checkpoint; add model. To "
            "start another run from a checkpoint's Hugging Face folder, name it as the model's path"
        )
