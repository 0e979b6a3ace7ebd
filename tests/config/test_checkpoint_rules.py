"""Parts of a checkpoint: unknown ones and useless combinations are refused by name, the rest follows."""

import pytest

from burnish.config.ppo import PPOConfig
from burnish.config.rules.given import Given
from burnish.config.rules.run import checkpoint
from burnish.errors import ConfigError

ACTOR = "actor_rollout_ref.actor.checkpoint"


@pytest.fixture
def settle():
    def run(actor=None, critic=None):
        config = PPOConfig()
        for section, values in ((config.actor_rollout_ref.actor, actor), (config.critic, critic)):
            for name, value in (values or {}).items():
                setattr(section.checkpoint, name, value)
        checkpoint(config, Given())
        return config.actor_rollout_ref.actor.checkpoint, config.critic.checkpoint

    return run


def test_what_is_read_follows_what_is_written(settle):
    for saved, loaded in (
        (["model", "optimizer", "extra"], ["model", "optimizer", "extra"]),
        (["model", "hf_model"], ["model"]),
        (["hf_model"], ["model"]),
    ):
        actor, critic = settle({"save_contents": saved})
        assert actor.load_contents == loaded
        assert critic.load_contents == ["model", "optimizer", "extra"]
    assert settle({"load_contents": ["model"]})[0].load_contents == ["model"]


@pytest.mark.parametrize("name", ["save_contents", "load_contents"])
def test_unknown_part_is_refused_with_the_choices(settle, name):
    with pytest.raises(
        ConfigError, match=rf"{ACTOR}\.{name}=\[model,optimiser\]: there is no part 'optimiser'; .*optimizer, extra"
    ):
        settle({name: ["model", "optimiser"]})
    with pytest.raises(ConfigError, match=rf"^critic\.checkpoint\.{name}=\[weights\]"):
        settle(critic={name: ["weights"]})


@pytest.mark.parametrize("parts", [[], ["optimizer"], ["hf_model", "optimizer"], ["extra"]])
def test_parts_that_no_run_could_resume_from_are_refused(settle, parts):
    with pytest.raises(ConfigError, match=r"save_contents=.*without model .*add model, or write \[hf_model\] alone"):
        settle({"save_contents": parts})


@pytest.mark.parametrize("parts", [[], ["optimizer"], ["hf_model"]])
def test_weights_are_always_read(settle, parts):
    with pytest.raises(ConfigError, match=r"load_contents=.*add model.*name it as the model's path"):
        settle({"load_contents": parts})


def test_the_critic_is_written_when_the_actor_is(settle):
    assert settle({"async_save": True})[1].async_save is True
    assert settle()[1].async_save is False
    with pytest.raises(ConfigError, match=r"critic\.checkpoint\.async_save=true with .*=false: .*leave .* out"):
        settle(critic={"async_save": True})


@pytest.mark.parametrize("trains_a_critic", [True, False])
def test_checkpoints_that_cannot_be_resumed_are_reported(trains_a_critic):
    config, given = PPOConfig(), Given()
    config.critic.enable = trains_a_critic
    config.critic.checkpoint.save_contents = ["hf_model"]
    checkpoint(config, given)
    told = ["no run can resume from these checkpoints: critic.checkpoint.save_contents=[hf_model] leaves out model"]
    assert given.notices == (told if trains_a_critic else [])
    config.actor_rollout_ref.actor.checkpoint.save_contents = ["hf_model"]
    checkpoint(config, given)
    assert any(f"{ACTOR}.save_contents=[hf_model]" in notice for notice in given.notices)
