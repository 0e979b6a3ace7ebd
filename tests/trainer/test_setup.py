"""Wiring: each model of a run is looked at before any of them is loaded, and planned with its own sizes."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from burnish.config.load import load_ppo
from burnish.controller import Role
from burnish.controller.local import LocalWorkerGroup
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.models.tiny import write_tiny_model
from burnish.trainer import setup

ESTIMATORS = {"critic": "gae", "process_reward": "prime"}
roles = pytest.mark.parametrize("role", ESTIMATORS)


@pytest.fixture
def load(job, reward):
    def make(role, model, *overrides):
        estimator = f"algorithm.adv_estimator={ESTIMATORS[role]}"
        return load_ppo([*job, estimator, f"{role}.model.path={model}", *overrides])

    return make


@roles
def test_what_is_wrong_with_a_model_is_reported_with_its_key(load, role, tmp_path, tiny_model):
    with pytest.raises(ModelError, match=rf"^{role}\.model\.path: .*\./no/such"):
        setup.prepare(load(role, "./no/such"))
    with pytest.raises(ModelError, match=r"^actor_rollout_ref\.model\.path: "):
        setup.prepare(load(role, "./other", "actor_rollout_ref.model.path=./no/such"))
    short = write_tiny_model(tmp_path / "short", context=39)
    with pytest.raises(ConfigError, match=rf"= 40 tokens, but {role}\.model\.path={short} has a context of 39"):
        setup.prepare(load(role, short))
    bare = shutil.copytree(tiny_model, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    loaded = load(role, bare)
    setup.prepare(loaded)
    with pytest.raises(ModelError, match=rf"^{role}\.model\.path: .*no weights"):
        setup.build(loaded.config)


def test_a_batch_has_no_more_prompts_than_there_are_rows(job):
    loaded = load_ppo([*job, "data.train_batch_size=100"])
    rows, _ = setup.prepare(loaded)
    assert loaded.config.data.train_batch_size == rows == 12
    assert "data.train_batch_size=12, not 100: there are 12 rows to train on" in loaded.notices


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


@pytest.fixture
def planned(load, capsys):
    """The lines of the plan, by their name."""

    def show(role, model, *overrides):
        loaded = load(role, model, *overrides, "--plan")
        setup.prepare(loaded)
        setup.run(loaded)
        return {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}

    return show


def test_the_plan_shows_greedy_rows(planned, tiny_model):
    plan = planned("critic", tiny_model, "algorithm.adv_estimator=remax", "actor_rollout_ref.rollout.name=hf")
    assert plan["greedy sequences per step"].split()[4] == "4"
    assert "8 sequences of 40 tokens" in plan["memory: KV cache"]


def test_the_plan_shows_the_kv_pool_and_its_share_of_the_device(planned, tiny_model, monkeypatch):
    monkeypatch.setattr(setup, "device_memory", lambda kind: 2**30)
    plan = planned("critic", tiny_model, "actor_rollout_ref.rollout.max_num_seqs=3")
    [line] = [line for line in plan.values() if "KV pool" in line]
    assert "rollout.max_num_seqs=3 sequences of 40 tokens, at most 0.5 of 1.0 GiB" in line


def test_a_plan_for_gpus_that_are_not_here(planned, tiny_model):
    plan = planned("critic", tiny_model, "--gpu-memory=2", "trainer.n_gpus_per_node=4")
    assert "4: actor_rollout_ref, critic" in plan["processes: global_pool"]
    assert "at most 0.5 of 2.0 GiB" in plan["memory: KV pool"] and "in bfloat16" in plan["memory: rollout replica"]


def test_the_plan_of_several_processes(planned, tiny_model):
    plan = "\n".join(planned("critic", tiny_model, *CLUSTER).values())
    assert "processes: global_pool" in plan and "2: actor_rollout_ref, critic" in plan
    assert "memory: rollout replica" in plan and "; 1/2 of them" in plan and "in each process" in plan


CLUSTER = ["trainer.n_gpus_per_node=2", "trainer.executor=ray", "algorithm.adv_estimator=gae"]


@pytest.fixture
def cluster(monkeypatch):
    """A `controller.ray` that starts nothing; notes how it was connected, and that it was left again."""
    noted = SimpleNamespace(connected=[], left=0)

    class Cluster(LocalWorkerGroup):
        @classmethod
        def disconnect(cls):
            noted.left += 1

    def connect(ray_init, **how):
        noted.connected.append({"ray_init": ray_init, **how})
        return Cluster

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "burnish.controller.ray", SimpleNamespace(connect=connect))
    return noted


def test_one_process_is_built_without_ray(job, reward):
    program = (
        "import sys\nfrom burnish.config.load import load_ppo\nfrom burnish.trainer import setup\n"
        f"loaded = load_ppo({job!r})\nsetup.prepare(loaded)\ntrainer = setup.build(loaded.config)\n"
        "print(trainer.worker_group_cls.__name__, 'ray' in sys.modules, trainer.resource_pool_manager.pools)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.startswith("LocalWorkerGroup False {'global_pool': ResourcePool([1], "), done.stderr


@pytest.mark.parametrize(("parameter", "warns"), [("ground_truth", True), ("ground_truth=None", False)])
def test_rows_without_the_ground_truth_of_a_custom_function_are_counted(job, reward, caplog, parameter, warns):
    rows = arithmetic.rows("train", 12, seed=0)
    for row in rows[3:]:
        row["extra_info"]["answer"] = row["reward_model"].pop("ground_truth")
    write_parquet(rows, "train.parquet")
    Path("reward.py").write_text(f"def compute_score(solution_str, {parameter}): return 0.0")
    loaded = load_ppo([*job, "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2"])
    setup.prepare(loaded)
    setup.build(loaded.config).close()
    said = "data.train_files: compute_score of reward.py gets None as ground_truth: 9 of 12 rows have no "
    said += "reward_model.ground_truth; extra_info.answer looks like one: copy it there"
    assert (said in caplog.text) == warns and "data.val_files: compute" not in caplog.text


def test_several_processes_are_rays_and_agent_loops_run_on_cpus(job, reward, cluster):
    Path("own.py").write_text("")
    keys = ["trainer.worker_timeout=7", "trainer.ray_wait_register_center_timeout=9"]
    loaded = load_ppo([*job, *CLUSTER, *keys, "actor_rollout_ref.model.external_lib=own.py"])
    setup.prepare(loaded)
    trainer = setup.build(loaded.config)
    (how,) = cluster.connected
    assert how.pop("ray_init") is loaded.config.ray_init and how.pop("under") is None
    assert how.pop("libraries") == {"actor_rollout_ref.model.external_lib": "own.py"}
    assert how == {"processes": 4, "logs": Path("run/logs"), "deadline_s": 7, "start_deadline_s": 9, "run": Path("run")}
    manager = trainer.resource_pool_manager
    assert {name: pool.process_on_nodes for name, pool in manager.pools.items()} == {"global_pool": [2], "agents": [2]}
    assert manager.pools["agents"].device == "cpu" and manager.roles_of("agents") == [Role.AgentLoop]
    assert manager.roles_of("global_pool") == [Role.ActorRolloutRef, Role.Critic]
    assert [notice for notice in loaded.notices if notice.startswith("2 processes on a Ray of this machine")]
    assert cluster.left == 0


def test_pools_of_the_configuration_are_those_of_the_run(job, reward, cluster):
    pools = "trainer.resource_pools={main:[2],value:[1],roles:{critic:value}}"
    loaded = load_ppo(
        [
            *job,
            "trainer.executor=ray",
            "algorithm.adv_estimator=gae",
            pools,
            "actor_rollout_ref.rollout.agent.num_workers=3",
        ]
    )
    setup.prepare(loaded)
    manager = setup.build(loaded.config).resource_pool_manager
    processes = {name: pool.process_on_nodes for name, pool in manager.pools.items()}
    assert processes == {"main": [2], "value": [1], "agents": [3]}
    assert manager.get_resource_pool(Role.Critic).name == "value"


def test_what_is_wrong_after_connecting_leaves_the_cluster(job, reward, cluster):
    loaded = load_ppo([*job, *CLUSTER])
    setup.prepare(loaded)
    Path("run").mkdir()
    Path("run/global_step_1").mkdir()
    with pytest.raises(CheckpointError):
        setup.build(loaded.config)
    assert cluster.left == 1


def test_auto_asks_torch_for_the_gpus(job, reward, monkeypatch):
    monkeypatch.setattr(setup, "gpus", lambda kind: 4)
    monkeypatch.setattr(setup, "device_memory", lambda kind: 2**34)
    loaded = load_ppo([*job, "trainer.executor=ray"])
    setup.prepare(loaded)
    assert loaded.config.trainer.n_gpus_per_node == 4
    with pytest.raises(ConfigError, match=r"n_gpus_per_node=8: 8 processes .*this machine has 4"):
        setup.prepare(load_ppo([*job, "trainer.n_gpus_per_node=8"]))


def test_heads_that_do_not_split_are_reported_before_a_model_is_loaded(job, reward):
    key = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=3"
    with pytest.raises(ConfigError, match=r"ulysses_sequence_parallel_size=3: actor_rollout_ref\.model\.path=.* heads"):
        setup.prepare(load_ppo([*job, "trainer.n_gpus_per_node=3", key]))
