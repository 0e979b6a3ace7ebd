"""The configuration of a replay: the run's, but for what names code or places, with keys set otherwise that hold."""

import dataclasses
import json
import logging
import shutil

import pytest
import torch

from burnish.config.key import keys_of, read
from burnish.config.load import PPO, load_ppo
from burnish.engine.dump import Dump, Update
from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.protocol import DataProto
from burnish.trainer import setup
from burnish.trainer.replay_config import READ, config_of

ACTOR, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.model"
BYPASS = "algorithm.rollout_correction.bypass_mode"


@pytest.fixture
def make(job, reward, tmp_path, tiny_model):
    """A dump, without its files but for the model, of the job with further keys."""

    def run(*keys, role="actor", command="ppo"):
        loaded = load_ppo([*job, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2", *keys])
        setup.prepare(loaded)
        config = {name: json.loads(json.dumps(read(loaded.config, name))) for name in keys_of(PPO.root)}
        shutil.copytree(tiny_model, tmp_path / "dump/model", dirs_exist_ok=True)
        update, batch = Update(role, 1, 0, 0, {}), DataProto.from_dict({"input_ids": torch.ones(1, 2).long()})
        return Dump(tmp_path / "dump", command, update, config, {"burnish": "1"}, batch)

    return run


def test_all_keys_of_the_run_hold_but_for_code_and_places(make, tiny_model):
    dump = make(f"{ACTOR}.clip_ratio=0.15", f"{MODEL}.dtype=bfloat16", "trainer.seed=7")
    config, known = config_of(dump, []), keys_of(PPO.root)
    other = {name for name in known if read(config, name) != dump.config[name]}
    assert dump.config["custom_reward_function.path"] and dump.config["data.train_files"]
    model = {f"{MODEL}.path", f"{MODEL}.tokenizer_path"}
    assert all(known[name].about.path for name in other) and "custom_reward_function.path" in other
    assert all(not read(config, name) for name in other - model)
    assert config.actor_rollout_ref.model.path == str(dump.folder / "model")
    assert config_of(dump, [f"{MODEL}.path={tiny_model}"]).actor_rollout_ref.model.path == str(tiny_model)


@pytest.mark.parametrize(
    "key",
    [
        "algorithm.adv_estimator",
        "reward_model.reward_manager",
        "custom_reward_function.path",
        "data.custom_cls.path",
        "data.sampler.class_path",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path",
        "critic.model.external_lib",
        "critic.model.path",
    ],
)
def test_what_names_code_is_dropped_where_an_update_does_not_need_it(make, key):
    dump = make()
    dump.config[key] = "evil.module:f"
    assert read(config_of(dump, []), key) == keys_of(PPO.root)[key].default


@pytest.mark.parametrize(
    ("role", "key", "value"),
    [
        ("actor", f"{ACTOR}.policy_loss.loss_mode", "evil.module:f"),
        ("actor", f"{MODEL}.external_lib", "a; touch ~/ran"),
        ("actor", f"{MODEL}.trust_remote_code", True),
        ("critic", "critic.model.external_lib", "evil"),
        ("process_reward", "process_reward.model.trust_remote_code", True),
    ],
)
def test_code_that_an_update_needs_is_asked_for(make, role, key, value):
    dump = make(role=role)
    dump.config[key] = value
    word = f"{key}={str(value).lower() if value is True else value}"
    word = f"'{word}'" if ";" in word else word
    with pytest.raises(ConfigError) as caught:
        config_of(dump, [])
    assert f"if you trust it: burnish replay {dump.folder} {word}" in str(caught.value)
    if key.endswith("loss_mode"):  # on the command line it is taken from there
        assert config_of(dump, [f"{key}=gspo"]).actor_rollout_ref.actor.policy_loss.loss_mode == "gspo"


def adapter(dump, base):
    (dump.folder / "model/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    dump.config[f"{MODEL}.lora_rank"] = 4


def test_the_base_of_an_adapter_is_a_folder_here_or_given(make, tiny_model, caplog):
    dump = make()
    adapter(dump, str(tiny_model))
    with caplog.at_level(logging.WARNING):
        model = config_of(dump, []).actor_rollout_ref.model
    assert (model.path, model.lora_adapter_path) == (str(tiny_model), str(dump.folder / "model"))
    assert f"the base of the adapter is {tiny_model} on this machine" in caplog.text and f"{MODEL}.path=" in caplog.text
    for base in ("Qwen/Qwen2.5-0.5B", "hdfs://x/y", "/nowhere", "dump/model", None, 5):
        adapter(dump, base)
        with pytest.raises(ConfigError, match=rf"its base is no folder on this machine: .*{MODEL}.path=FOLDER"):
            config_of(dump, [])
    assert config_of(dump, [f"{MODEL}.path=my/model"]).actor_rollout_ref.model.path == "my/model"
    (dump.folder / "model/adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"is damaged \(no model/adapter_config.json\)"):
        config_of(dump, [])


def test_weights_are_safetensors_in_the_dump(make):
    dump = make()
    index = dump.folder / "model/model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../other.safetensors"}}))
    with pytest.raises(ModelError, match=r"names .*other.safetensors.*which is outside of"):
        config_of(dump, [])
    index.unlink()
    (dump.folder / "model/pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds pytorch_model.bin: a dump has only safetensors"):
        config_of(dump, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": {}}, "it lacks .* of the keys, such as actor_rollout_ref"),
        ({"gone": "trainer.seed"}, "it lacks 1 of the keys, such as trainer.seed"),
        ({"set": ("trainer.gone", 1)}, "from another version, burnish 1, .*trainer.gone, which is unknown here"),
        ({"set": (f"{ACTOR}.ppo_max_token_len_per_gpu", "many")}, "is damaged .*token_len_per_gpu=many: must be"),
        ({"set": (f"{ACTOR}.clip_ratio", -1)}, "is damaged .*clip_ratio=-1"),
        ({"set": ("trainer.seed", None)}, "is damaged .*trainer.seed=null"),
        ({"command": "dpo"}, "was written by `burnish dpo` .actor., unknown here"),
        ({"command": "sft"}, "was written by `burnish sft` .actor., unknown here"),
    ],
)
def test_keys_that_are_not_of_this_version_or_of_no_use_are_refused(make, change, said):
    dump = make()
    config = change.get("config", dump.config)
    config.pop(change.get("gone"), None)
    config.update(dict([change["set"]]) if "set" in change else {})
    dump = dataclasses.replace(dump, config=config, command=change.get("command", "ppo"))
    with pytest.raises(CheckpointError, match=said):
        config_of(dump, [])


def test_the_clip_range_follows_its_key_unless_a_side_was_set(make):
    dump = make()

    def sides(*keys):
        actor = config_of(dump, keys).actor_rollout_ref.actor
        return actor.clip_ratio_low, actor.clip_ratio_high

    assert sides(f"{ACTOR}.clip_ratio=0.3") == (0.3, 0.3)
    assert sides(f"{ACTOR}.clip_ratio=0.3", f"{ACTOR}.clip_ratio_high=0.5") == (0.3, 0.5)
    dump.config[f"{ACTOR}.clip_ratio_low"] = 0.1
    assert sides(f"{ACTOR}.clip_ratio=0.3") == (0.1, 0.3)


def test_a_kl_coefficient_switches_its_term_on_as_in_a_run(make):
    dump = make()
    assert config_of(dump, [f"{ACTOR}.kl_loss_coef=0.1"]).actor_rollout_ref.actor.use_kl_loss
    assert not config_of(dump, []).actor_rollout_ref.actor.use_kl_loss
    with pytest.raises(ConfigError, match="kl_loss_coef=0.1 with .*use_kl_loss=false: the coefficient would do noth"):
        config_of(dump, [f"{ACTOR}.kl_loss_coef=0.1", f"{ACTOR}.use_kl_loss=False"])


def test_what_the_old_log_probs_are_is_the_dumps_to_say(make):
    for keys, asked in (([], "true"), ([f"{BYPASS}=True"], "false")):
        with pytest.raises(ConfigError, match=f"{BYPASS}={asked}: it says what the old log-probs are"):
            config_of(make(*keys), [f"{BYPASS}={asked}"])
    assert config_of(make(f"{BYPASS}=True"), [f"{BYPASS}=True"]).algorithm.rollout_correction.bypass_mode


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (f"{ACTOR}.optim.lr=1", f"no effect: {ACTOR}.optim.lr"),
        (f"{ACTOR}.ppo_epochs=3", f"no effect: {ACTOR}.ppo_epochs"),
        ("algorithm.kl_ctrl.kl_coef=0.1", "no effect: algorithm.kl_ctrl.kl_coef"),
        ("algorithm.gamma=0.5", "no effect: algorithm.gamma"),
        ("algorithm.rollout_correction.rollout_is=token", "unused: algorithm.rollout_correction.rollout_is"),
        (f"{ACTOR}.policy_loss.tau_pos=2", f"unused: {ACTOR}.policy_loss.tau_pos"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu=99", f"unused: {ACTOR}.ppo_max_token_len_per_gpu"),
    ],
)
def test_keys_without_effect_are_reported(make, caplog, key, said):
    with caplog.at_level(logging.WARNING):
        config_of(make(), [key])
    assert said in caplog.text


def test_keys_with_an_effect_are_not_complained_of(make, caplog):
    keys = [f"{ACTOR}.entropy_coeff=0.1", "trainer.device=cpu", "actor_rollout_ref.rollout.temperature=2"]
    with caplog.at_level(logging.WARNING):
        config_of(make(), keys)
    assert not caplog.text
    known = keys_of(PPO.root)
    for role in ("actor", "critic", "process_reward"):
        assert all(part in known or any(name.startswith(f"{part}.") for name in known) for part in READ[role]), role
