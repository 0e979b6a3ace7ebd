"""LoRA adapters and host memory: what their keys need, and what is said of those that are not read."""

import importlib.util
import re

import pytest

from burnish.config import SFTConfig
from burnish.config.finalise import finalise_generation, finalise_sft
from burnish.config.load import GENERATION, load, load_sft
from burnish.config.needs import Needs
from burnish.config.rules.models import without_gpu
from burnish.errors import install_command
from tests.config.conftest import refused, told

MODEL = "actor_rollout_ref.model"


def test_adapter_keys_that_are_not_read_are_reported(finish):
    config, notices = finish({f"{MODEL}.lora_rank": 16, f"{MODEL}.target_modules": "q_proj", f"{MODEL}.lora_alpha": 32})
    assert config.actor_rollout_ref.model.target_modules == ["q_proj"] and not told(notices, "unused")
    _, notices = finish({f"{MODEL}.lora_alpha": 32})
    assert told(notices, "unused") == [f"unused: {MODEL}.lora_alpha ({MODEL}.lora_rank is 0: all weights are trained)"]
    _, notices = finish({f"{MODEL}.lora_adapter_path": "a", f"{MODEL}.lora_alpha": 3, f"{MODEL}.target_modules": "x"})
    said = f"unused: {MODEL}.lora_alpha, {MODEL}.target_modules ({MODEL}.lora_adapter_path has its own)"
    assert told(notices, "unused") == [said]


@pytest.mark.parametrize("key", [f"{MODEL}.lora_rank", "critic.model.lora_rank", "process_reward.model.lora_rank"])
def test_a_run_without_peft_ends_before_it_begins(finish, monkeypatch, key):
    needs = Needs(critic=True, process_reward=True)
    finish({key: 8}, needs)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    finish({}, needs)
    said = re.escape(f"needs the package peft; install it with `{install_command('lora')}`")
    refused(said, finish, {key: 8}, needs)
    loaded = load_sft(["data.train_files=a.parquet", "model.path=m", "model.lora_rank=8"])
    refused(said, finalise_sft, loaded.config, loaded.explicit)


def test_where_nothing_trains_an_adapter_must_have_been_trained(finish):
    words = "data.path=a.parquet data.output_path=b.parquet model.path=m model.lora_rank=8"
    (job,) = load(words.split(), GENERATION)
    said = r"^model.lora_rank=8: this model is not trained, .*model.lora_adapter_path"
    refused(said, finalise_generation, job.config, job.explicit)
    said = r"reward_model.model.lora_rank=8: this model is not trained"
    refused(said, finish, JUDGE | {"reward_model.model.lora_rank": 8})
    finish(JUDGE | {"reward_model.model.lora_adapter_path": "a"})


ACTOR, REF = "actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config"
JUDGE = {"reward_model.enable": True, "reward_model.model.path": "x"}
KL = {"actor_rollout_ref.actor.use_kl_loss": True}


def test_supported_offload_gives_no_notice(finish):
    keys = {f"{REF}.param_offload": True, f"{ACTOR}.optimizer_offload": True}
    config, notices = finish(KL | keys | {"actor_rollout_ref.model.enable_activation_offload": True})
    assert not told(notices, "offload") and config.actor_rollout_ref.ref.fsdp_config.param_offload


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({f"{REF}.param_offload": True}, "no KL term reads the reference"),
        (KL | {f"{REF}.param_offload": True, "actor_rollout_ref.model.lora_rank": 8}, "with LoRA the reference is"),
        (KL | {f"{REF}.optimizer_offload": True}, "the reference is not trained"),
        (JUDGE | {"reward_model.model.enable_activation_offload": True}, "the reward model is not trained"),
        (JUDGE | {"reward_model.model.fsdp_config.optimizer_offload": True}, "the reward model is not trained"),
    ],
)
def test_offload_keys_without_effect_are_reported(finish, keys, reason):
    notices = finish(keys)[1]
    assert len(told(notices, "no effect", reason, "_offload")) == 1
    assert not told(finish({name: value for name, value in keys.items() if "offload" not in name})[1], "offload")


def test_several_processes_have_a_copy_for_the_engine_so_the_actor_may_move(finish):
    config, notices = finish({f"{ACTOR}.param_offload": True, "trainer.n_gpus_per_node": 2})
    assert config.actor_rollout_ref.actor.fsdp_config.param_offload and not told(notices, "offload")
    said = r"param_offload=true: the rollout engine.*optimizer_offload.*activation.*lora.*or several processes"
    for one in ({}, {"trainer.executor": "ray", "trainer.n_gpus_per_node": 1}):
        refused(said, finish, {f"{ACTOR}.param_offload": True} | one)


def test_offload_by_fsdp_itself_needs_fsdp(finish):
    said = r"ref\.fsdp_config\.offload_policy=true.*there is only one; use .*param_offload"
    refused(said, finish, KL | {f"{REF}.offload_policy": True})
    several = KL | {"trainer.n_gpus_per_node": 2, f"{REF}.offload_policy": True}
    assert not told(finish(several)[1], "offload")
    (notice,) = told(finish(several | {f"{REF}.param_offload": True})[1], "offload")
    assert notice == f"no effect: {REF}.param_offload ({REF}.offload_policy keeps all of it in host memory)"


def test_on_a_cpu_every_key_is_named(finish):
    keys = {f"{REF}.param_offload": True, "critic.fsdp_config.optimizer_offload": True}
    said = f"no effect: {REF}.param_offload, critic.fsdp_config.optimizer_offload (a CPU computes in host memory)"
    assert without_gpu(finish(KL | keys)[0]) == [said]
    assert without_gpu(finish(KL)[0]) == []
    config = SFTConfig()
    config.model.enable_activation_offload = True
    assert "model.enable_activation_offload" in without_gpu(config)[0]
