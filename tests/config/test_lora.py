"""The keys of LoRA adapters: what they need, and what is said of those that are not read."""

import importlib.util
import re

import pytest

from burnish.config.finalise import finalise_generation, finalise_sft
from burnish.config.load import GENERATION, load, load_sft
from burnish.config.needs import Needs
from burnish.errors import ConfigError, install_command

MODEL = "actor_rollout_ref.model"


def unused(notices):
    return [notice for notice in notices if notice.startswith("unused")]


def test_one_name_is_a_list_of_one(finish):
    config, notices = finish({f"{MODEL}.lora_rank": 16, f"{MODEL}.target_modules": "q_proj", f"{MODEL}.lora_alpha": 32})
    assert config.actor_rollout_ref.model.target_modules == ["q_proj"] and not unused(notices)


def test_adapter_keys_without_an_adapter_are_reported(finish):
    _, notices = finish({f"{MODEL}.lora_alpha": 32})
    assert unused(notices) == [f"unused: {MODEL}.lora_alpha ({MODEL}.lora_rank is 0: all weights are trained)"]


def test_an_initial_adapter_has_its_own_settings(finish):
    _, notices = finish({f"{MODEL}.lora_adapter_path": "a", f"{MODEL}.lora_alpha": 3, f"{MODEL}.target_modules": "x"})
    assert unused(notices) == [
        f"unused: {MODEL}.lora_alpha, {MODEL}.target_modules ({MODEL}.lora_adapter_path has its own)"
    ]


@pytest.mark.parametrize("key", [f"{MODEL}.lora_rank", "critic.model.lora_rank", "process_reward.model.lora_rank"])
def test_a_run_without_peft_ends_before_it_begins(finish, monkeypatch, key):
    needs = Needs(critic=True, process_reward=True)
    finish({key: 8}, needs)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    finish({}, needs)
    with pytest.raises(
        ConfigError, match=re.escape(f"needs the package peft; install it with `{install_command('lora')}`")
    ):
        finish({key: 8}, needs)


def test_supervised_runs_check_it_too(monkeypatch):
    loaded = load_sft(["data.train_files=a.parquet", "model.path=m", "model.lora_rank=8"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the package peft"):
        finalise_sft(loaded.config, loaded.explicit)


def test_where_nothing_trains_an_adapter_must_have_been_trained(finish):
    (job,) = load(
        ["data.path=a.parquet", "data.output_path=b.parquet", "model.path=m", "model.lora_rank=8"], GENERATION
    )
    with pytest.raises(ConfigError, match=r"model.lora_rank=8: this model is not trained, .*model.lora_adapter_path"):
        finalise_generation(job.config, job.explicit)
    judge = {"reward_model.enable": True, "reward_model.model.path": "r"}
    with pytest.raises(ConfigError, match=r"reward_model.model.lora_rank=8: this model is not trained"):
        finish(judge | {"reward_model.model.lora_rank": 8})
    finish(judge | {"reward_model.model.lora_adapter_path": "a"})
