"""Files and model against the configuration."""

from dataclasses import dataclass, field

import pytest

from burnish.config import PPOConfig, SFTConfig, check_files, check_model
from burnish.errors import ConfigError, DataError


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


def test_rows_are_counted():
    assert check_files(ppo(["a", "b"]), lambda file: Facts(rows=7)) == 14
    assert check_files(ppo(["a", "b"], train_max_samples=9), lambda file: Facts(rows=7)) == 9


def test_validation_files_are_looked_at():
    seen = []
    check_files(ppo(val_files=["v.parquet"]), lambda file: seen.append(file) or Facts())
    assert seen == ["a.parquet", "v.parquet"]


def test_an_empty_file():
    with pytest.raises(DataError, match=r"a\.parquet: the file has no rows"):
        check_files(ppo(), lambda file: Facts(rows=0))


def test_a_missing_column_is_named_with_those_there():
    with pytest.raises(DataError) as error:
        check_files(ppo(prompt_key="question"), lambda file: Facts())
    assert "a.parquet: no column 'question' (data.prompt_key); its columns are prompt, data_source" in str(error.value)


def test_columns_that_do_as_well():
    check_files(ppo(), lambda file: Facts(columns=["prompts"]))
    check_files(ppo(prompt_key="chat.prompt"), lambda file: Facts(columns=["chat"]))
    own = ppo()
    own.data.custom_cls.path = "mine.py"
    check_files(own, lambda file: Facts(columns=["anything"]))


def test_sft_reads_conversations_or_pairs():
    config = SFTConfig()
    config.data.train_files = ["a.parquet"]
    check_files(config, lambda file: Facts(columns=["messages"]))
    with pytest.raises(DataError, match=r"no column 'messages' \(data.messages_key\)"):
        check_files(config, lambda file: Facts(columns=["question", "answer"]))
    config.data.prompt_key, config.data.response_key = "question", "answer"
    check_files(config, lambda file: Facts(columns=["question", "answer"]))
    with pytest.raises(DataError, match=r"no column 'answer' \(data.response_key\)"):
        check_files(config, lambda file: Facts(columns=["question"]))


def test_prompt_and_response_fit_the_context():
    key = "actor_rollout_ref.model"
    check_model(ppo(), key, Facts(context=1024))
    check_model(ppo(), key, Facts(context=None))
    with pytest.raises(ConfigError) as error:
        check_model(ppo(max_response_length=600), key, Facts(context=1024))
    assert "data.max_response_length=600" in str(error.value)
    assert "= 1112 tokens, but actor_rollout_ref.model.path=some/model has a context of 1024" in str(error.value)


@pytest.mark.parametrize("role", ["critic", "process_reward"])
def test_the_context_of_the_other_models_counts_under_their_own_key(role):
    config = ppo(max_response_length=600)
    getattr(config, role).enable, getattr(config, role).model.path = True, "other/model"
    assert list(config.models) == ["actor_rollout_ref.model", f"{role}.model"]
    with pytest.raises(ConfigError, match=f"1112 tokens, but {role}.model.path=other/model has a context of 1024"):
        check_model(config, f"{role}.model", Facts(context=1024))
