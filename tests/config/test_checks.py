"""Files and model against the configuration, and the parts of a checkpoint: unknown ones and useless combinations are
refused by name."""

from dataclasses import dataclass, field

import pytest

from burnish.config import PPOConfig, SFTConfig
from burnish.config.checks import check_files, check_model
from burnish.config.rules import Given
from burnish.config.rules.run import checkpoint
from burnish.errors import DataError
from tests.config.conftest import refused


@dataclass
class Facts:
    rows: int = 10
    columns: list[str] = field(default_factory=lambda: ["prompt", "data_source"])
    context: int | None = 1024


def ppo(train=("a.parquet",), **data):
    config = PPOConfig()
    config.actor_rollout_ref.model.path = "some/model"
    config.data.train_files, config.data.val_files = list(train), []
    for name, value in data.items():
        setattr(config.data, name, value)
    return config


def test_rows_are_counted_and_validation_files_looked_at():
    assert check_files(ppo(["a", "b"]), lambda file: Facts(rows=7)) == 14
    assert check_files(ppo(["a", "b"], train_max_samples=9), lambda file: Facts(rows=7)) == 9
    seen = []
    check_files(ppo(val_files=["v.parquet"]), lambda file: seen.append(file) or Facts())
    assert seen == ["a.parquet", "v.parquet"]


def test_empty_files_and_missing_columns_are_named():
    refused(r"a\.parquet: the file has no rows", check_files, ppo(), lambda file: Facts(rows=0), error=DataError)
    with pytest.raises(DataError, match=r"a\.parquet: no column 'question' \(data.prompt_key\); its columns are pr"):
        check_files(ppo(prompt_key="question"), lambda file: Facts())
    check_files(ppo(), lambda file: Facts(columns=["prompts"]))
    check_files(ppo(prompt_key="chat.prompt"), lambda file: Facts(columns=["chat"]))
    own = ppo()
    own.data.custom_cls.path = "mine.py"
    check_files(own, lambda file: Facts(columns=["anything"]))


def test_sft_reads_conversations_or_pairs_and_prompt_and_response_fit_the_context():
    config = SFTConfig()
    config.data.train_files = ["a.parquet"]
    check_files(config, lambda file: Facts(columns=["messages"]))
    said = r"no column 'messages' \(data.messages_key\)"
    refused(said, check_files, config, lambda file: Facts(columns=["question", "answer"]), error=DataError)
    config.data.prompt_key, config.data.response_key = "question", "answer"
    check_files(config, lambda file: Facts(columns=["question", "answer"]))
    said = r"no column 'answer' \(data.response_key\)"
    refused(said, check_files, config, lambda file: Facts(columns=["question"]), error=DataError)
    key = "actor_rollout_ref.model"
    check_model(ppo(), key, Facts(context=1024))
    check_model(ppo(), key, Facts(context=None))
    said = f"data.max_response_length=600 = 1112 tokens, but {key}.path=some/model has a context of 1024"
    refused(said, check_model, ppo(max_response_length=600), key, Facts(context=1024))


@pytest.mark.parametrize("role", ["critic", "process_reward"])
def test_the_context_of_the_other_models_counts_under_their_own_key(role):
    config = ppo(max_response_length=600)
    getattr(config, role).enable, getattr(config, role).model.path = True, "other/model"
    assert list(config.models) == ["actor_rollout_ref.model", f"{role}.model"]
    said = f"1112 tokens, but {role}.model.path=other/model has a context of 1024"
    refused(said, check_model, config, f"{role}.model", Facts(context=1024))


ACTOR = "actor_rollout_ref.actor.checkpoint"


def settle(actor=None, critic=None):
    config = PPOConfig()
    for section, values in ((config.actor_rollout_ref.actor, actor), (config.critic, critic)):
        for name, value in (values or {}).items():
            setattr(section.checkpoint, name, value)
    checkpoint(config, Given())
    return config.actor_rollout_ref.actor.checkpoint, config.critic.checkpoint


def test_what_is_read_follows_what_is_written():
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
def test_unknown_part_is_refused_with_the_choices(name):
    said = rf"{ACTOR}\.{name}=\[model,optimiser\]: there is no part 'optimiser'; .*optimizer, extra"
    refused(said, settle, {name: ["model", "optimiser"]})
    refused(rf"^critic\.checkpoint\.{name}=\[weights\]", settle, critic={name: ["weights"]})


@pytest.mark.parametrize("parts", [[], ["optimizer"], ["hf_model", "optimizer"], ["extra"]])
def test_parts_that_no_run_could_resume_from_are_refused(parts):
    refused(r"save_contents=.*without model .*add model, or write \[hf_model\] alone", settle, {"save_contents": parts})


@pytest.mark.parametrize("parts", [[], ["optimizer"], ["hf_model"]])
def test_weights_are_always_read(parts):
    refused(r"load_contents=.*add model.*name it as the model's path", settle, {"load_contents": parts})


def test_the_critic_is_written_when_the_actor_is():
    assert settle({"async_save": True})[1].async_save is True
    assert settle()[1].async_save is False
    refused(r"critic\.checkpoint\.async_save=true with .*=false: .*leave .* out", settle, critic={"async_save": True})


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
