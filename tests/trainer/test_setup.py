"""Wiring: each model of a run is looked at before any of them is loaded, and planned with its own sizes."""

import shutil

import pytest

from burnish.config.load import load_ppo
from burnish.errors import ConfigError, ModelError
from burnish.models.tiny import write_tiny_model
from burnish.trainer import setup

ESTIMATORS = {"critic": "gae", "process_reward": "prime"}
roles = pytest.mark.parametrize("role", ESTIMATORS)


@pytest.fixture
def load(job, reward):
    """The job with a model of its own for a role."""

    def make(role, model, *overrides):
        estimator = f"algorithm.adv_estimator={ESTIMATORS[role]}"
        return load_ppo([*job, estimator, f"{role}.model.path={model}", *overrides])

    return make


@roles
def test_a_model_that_is_not_there_is_told_with_its_key(load, role):
    with pytest.raises(ModelError, match=rf"^{role}\.model\.path: .*\./no/such"):
        setup.prepare(load(role, "./no/such"))


@roles
def test_a_context_that_is_too_short_is_told_with_its_key(load, role, tmp_path):
    short = write_tiny_model(tmp_path / "short", context=39)
    with pytest.raises(ConfigError, match=rf"= 40 tokens, but {role}\.model\.path={short} has a context of 39"):
        setup.prepare(load(role, short))


@roles
def test_weights_that_are_not_there_are_told_before_any_are_read(load, role, tmp_path, tiny_model):
    bare = shutil.copytree(tiny_model, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    loaded = load(role, bare)
    setup.prepare(loaded)
    with pytest.raises(ModelError, match=rf"^{role}\.model\.path: .*no weights"):
        setup.build(loaded.config)


@roles
def test_each_model_is_planned_with_its_own_sizes(load, role, tmp_path, capsys):
    large = write_tiny_model(tmp_path / "large", hidden_size=64, layers=4)
    loaded = load(role, large, "--plan")
    rows, facts = setup.prepare(loaded)
    own, policy = facts[f"{role}.model"], facts["actor_rollout_ref.model"]
    assert rows == 12 and own.layers == 4 and policy.layers == 2
    setup.run(loaded)
    copies = {"critic": 12, "process_reward": 16}[role]  # bytes of a float32 parameter: itself, moments, and its start
    line = next(line for line in capsys.readouterr().out.splitlines() if f"memory: {role.replace('_', ' ')}" in line)
    assert f"{own.parameters * copies / 2**20:.1f} MiB" in line


@pytest.mark.parametrize("memory", [None, 2**34])
def test_offload_is_said_to_have_no_effect_where_there_is_no_gpu(load, tiny_model, monkeypatch, memory):
    monkeypatch.setattr(setup, "device_memory", lambda kind: memory)
    loaded = load("critic", tiny_model, "critic.fsdp_config.param_offload=true")
    setup.prepare(loaded)
    said = [notice for notice in loaded.notices if notice.startswith("no effect: critic.fsdp_config.param_offload")]
    assert len(said) == (memory is None)


def test_the_policys_model_is_named_too(load):
    with pytest.raises(ModelError, match=r"^actor_rollout_ref\.model\.path: "):
        setup.prepare(load("critic", "./other", "actor_rollout_ref.model.path=./no/such"))


def test_the_plan_shows_greedy_rows(load, capsys, tiny_model):
    remax = ["algorithm.adv_estimator=remax", "actor_rollout_ref.rollout.name=hf"]
    loaded = load("critic", tiny_model, *remax, "--plan")
    setup.prepare(loaded)
    setup.run(loaded)
    plan = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert plan["greedy sequences per step"].split()[4] == "4"
    assert "8 sequences of 40 tokens" in plan["memory: KV cache"]


def test_the_plan_shows_the_kv_pool_and_its_share_of_the_device(load, capsys, tiny_model, monkeypatch):
    monkeypatch.setattr(setup, "device_memory", lambda kind: 2**30)
    loaded = load("critic", tiny_model, "actor_rollout_ref.rollout.max_num_seqs=3", "--plan")
    setup.prepare(loaded)
    setup.run(loaded)
    [line] = [line for line in capsys.readouterr().out.splitlines() if "KV pool" in line]
    assert "rollout.max_num_seqs=3 sequences of 40 tokens, at most 0.5 of 1.0 GiB" in line
