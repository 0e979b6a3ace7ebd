"""Processes: which executor runs, what pools there are, what cannot be shared out, and the plan of one process."""

import importlib.util
import re

import pytest

from burnish.config import GENERATION, RM, SFT, Needs, load
from burnish.config.checks import check_heads
from burnish.config.memory import estimate_memory, gib
from burnish.config.placement import ModelSplit, agent_processes, describe, pool_of, pools_of, split_of
from burnish.config.plan import plan_micro_batches, plan_numbers
from burnish.config.ppo import ACTOR_MODEL, CRITIC_MODEL, REWARD_MODEL
from burnish.config.rules.cluster import devices
from burnish.errors import NotAvailable, install_command
from tests.config.conftest import refused, told
from tests.config.test_plan import facts_of, hows, sizes, value

ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
NODES, PER_NODE, EXECUTOR, POOLS, PER_GPU = (
    f"trainer.{name}" for name in ("nnodes", "n_gpus_per_node", "executor", "resource_pools", "processes_per_gpu")
)
ADDRESS = "ray_init.address"
JUDGE = {"reward_model.enable": True, "reward_model.model.path": "rm"}
APART = JUDGE | {POOLS: {"main": [1], "judge": [3], "roles": {"reward_model": "judge"}}}
TWO_NODES = {NODES: 2, ADDRESS: "head:6379"}
KL = {f"{ACTOR}.use_kl_loss": True}
CRITIC = Needs(critic=True)
SLICED = {f"{ACTOR}.ulysses_sequence_parallel_size": 2}


@pytest.fixture(autouse=True)
def no_cluster_around(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_one_machine_needs_no_ray_and_a_missing_one_is_named_with_the_command(finish, monkeypatch):
    config, notices = finish()
    assert (config.trainer.executor, config.trainer.n_gpus_per_node) == ("local", 1)
    assert describe(config) == "" and not told(notices, "ray")
    assert finish({EXECUTOR: "local"})[0].trainer.executor == "local"
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    refused(rf"^trainer\.nnodes: .*`{re.escape(install_command('ray'))}`", finish, TWO_NODES)
    finish()
    finish({PER_NODE: 2})


ON_TWO = "trainer.nnodes=1 × trainer.n_gpus_per_node=2 is more than one process"


@pytest.mark.parametrize(
    ("keys", "executor", "reason"),
    [
        ({PER_NODE: 2}, "processes", ON_TWO),
        ({POOLS: {"main": [1]}}, "processes", "trainer.resource_pools is set"),
        ({POOLS: {"main": [1, 1]}, ADDRESS: "head:6379"}, "ray", "trainer.resource_pools is set"),
        (TWO_NODES, "ray", "trainer.nnodes=2 × trainer.n_gpus_per_node=auto is more than one process"),
        ({PER_NODE: 2, ADDRESS: "auto"}, "ray", f"{ON_TWO}, and there is a Ray at auto"),
    ],
)
def test_number_of_processes_and_machines_chooses_the_executor(finish, keys, executor, reason):
    config, notices = finish(keys)
    assert config.trainer.executor == executor and told(notices, f"trainer.executor={executor}, because {reason}")
    reason = reason.partition(", and there")[0]
    said = f"trainer.executor=local runs one process, but {reason}; leave one of them out"
    refused(f"^{re.escape(said)}$", finish, keys | {EXECUTOR: "local"})


def test_keys_that_are_not_read_are_reported(finish):
    keys = {"trainer.worker_timeout": 5, "ray_init.num_cpus": 4, f"{ROLLOUT}.agent.num_workers": 3}
    (notice,) = told(finish(keys)[1], "trainer.executor is local")
    assert all(name in notice for name in keys)
    (notice,) = told(finish(keys | {PER_NODE: 2})[1], "unused")
    assert notice == "unused: ray_init.num_cpus (trainer.executor is processes: those of this machine, without Ray)"
    config, notices = finish({"trainer.processes_per_gpu": 2, PER_NODE: 2})
    assert not told(notices, "unused")
    for gpus, said in ((0, ["unused: trainer.processes_per_gpu (the run is on a CPU)"]), (1, [])):
        assert told(devices(config, frozenset({"trainer.processes_per_gpu"}), gpus), "unused") == said
    keys = {f"{ACTOR}.fsdp_config.fsdp_size": 2, f"{REF}.fsdp_config.forward_prefetch": True}
    keys["trainer.balance_batch"] = False
    notices = finish(keys | KL)[1]
    assert told(notices, "unused", f"{ACTOR}.fsdp_config.fsdp_size", "nothing to shard")
    assert told(notices, "unused", f"{REF}.fsdp_config.forward_prefetch")
    assert told(notices, "balance_batch", "one process")
    assert not told(finish(keys | {PER_NODE: 2})[1], "unused")
    (notice,) = told(finish({POOLS: {"main": [2]}, PER_NODE: 8, NODES: 1})[1], "unused")
    assert notice == f"unused: {NODES}, {PER_NODE} (trainer.resource_pools says how many processes there are)"
    config, notices = finish({POOLS: {"main": [1], "roles": {"critic": "main"}}})
    assert told(notices, "no effect: trainer.resource_pools.roles of critic (this run has none)")
    assert config.trainer.resource_pools == {"main": [1], "roles": {}}


def test_auto_is_the_gpus_of_this_machine_with_ray_and_one_without(finish):
    config, _ = finish({EXECUTOR: "ray"})
    assert config.trainer.n_gpus_per_node == "auto"
    (notice,) = devices(config, frozenset(), 8)
    assert config.trainer.n_gpus_per_node == 8 and "8 processes" in notice and "global_pool 8 (actor" in notice
    config, _ = finish({EXECUTOR: "ray"})
    assert "1 process on a Ray of this machine" in devices(config, frozenset(), 0)[0]
    config, _ = finish()
    assert devices(config, frozenset(), 8) == [] and config.trainer.n_gpus_per_node == 1
    config, _ = finish({EXECUTOR: "ray", f"{ACTOR}.ulysses_sequence_parallel_size": 3})
    refused("parallel_size=3: the 8 processes of the pool global_pool", devices, config, frozenset(), 8)


def test_more_processes_than_gpus_is_an_error_and_on_a_cpu_they_share(finish):
    config, _ = finish({PER_NODE: 4})
    said = r"^trainer\.n_gpus_per_node=4: 4 processes .*this machine has 2.*device=cpu"
    refused(said, devices, config, frozenset(), 2)
    assert "4 processes" in devices(config, frozenset(), 0)[0]
    pools, _ = finish({POOLS: {"a": [2], "b": [1], "roles": {"reward_model": "b"}}} | JUDGE)
    refused(r"^trainer\.resource_pools=.*3 processes", devices, pools, frozenset(), 2)
    away, _ = finish(TWO_NODES | {PER_NODE: 4})
    assert "8 processes on the Ray at head:6379: global_pool 4 on each of 2 nodes" in devices(away, frozenset(), 1)[0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({NODES: 2}, r"^trainer\.nnodes=2 needs a Ray cluster.*`ray start --head`.*ray_init\.address"),
        ({POOLS: {"main": [1, 1]}}, r"^trainer\.resource_pools with a pool on 2 nodes needs"),
        ({PER_NODE: 2, ADDRESS: "ray://head:1"}, r"ray_init\.address=ray://head:1: .*machine of the cluster"),
        (
            {PER_NODE: 2, ADDRESS: "auto", "ray_init.num_cpus": 4},
            "num_cpus=4 with .*address=auto.*leave .*num_cpus out",
        ),
    ],
)
def test_several_nodes_are_those_of_a_cluster_that_runs(finish, keys, message):
    refused(message, finish, keys)
    assert finish(TWO_NODES)[0].ray_init.address == "head:6379"
    finish({PER_NODE: 2, "ray_init.num_cpus": 4})


def test_the_cluster_of_the_environment_is_taken(finish, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    config, notices = finish({NODES: 2})
    assert config.ray_init.address == "10.0.0.1:6379" and told(notices, "ray_init.address=10.0.0.1:6379", "RAY_ADDRESS")
    assert finish({NODES: 2, ADDRESS: "auto"})[0].ray_init.address == "auto"
    assert finish()[0].ray_init.address is None, "one process needs none"
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    assert finish({PER_NODE: 2})[0].ray_init.address is None, "which is where jobs are sent"


def test_roles_that_are_not_named_run_on_the_first_pool(finish, load):
    keys = {POOLS: {"main": [2], "judge": [1], "roles": {"reward_model": "judge"}}}
    config, _ = finish(keys | JUDGE, CRITIC)
    main, judge = ("main", (2,), ("actor_rollout_ref", "critic")), ("judge", (1,), ("reward_model",))
    assert [(pool.name, pool.on_nodes, pool.roles) for pool in pools_of(config)] == [main, judge]
    assert pool_of(config, REWARD_MODEL).name == "judge" and pool_of(config, CRITIC_MODEL).name == "main"
    said = devices(config, frozenset(), 0)[0]
    assert "3 processes" in said and "judge 1 (reward_model)" in said
    (pool,) = pools_of(finish(TWO_NODES | {PER_NODE: 3})[0])
    assert (pool.name, pool.on_nodes, pool.where) == ("global_pool", (3, 3), "3 on each of 2 nodes")
    config, _ = finish({POOLS: {"main": 2}})
    assert pools_of(config)[0].on_nodes == (2,)
    loaded = load(POOLS + "={main:[2],judge:[1,1],roles:{reward_model:judge}}")
    assert loaded.config.trainer.resource_pools == {"main": [2], "judge": [1, 1], "roles": {"reward_model": "judge"}}


@pytest.mark.parametrize(
    ("pools", "words"),
    [
        ({"roles": {}}, "has no pool.*as in trainer.resource_pools={main"),
        ({"main": []}, r"the pool main is \[\]; give the number of processes on each"),
        ({"main": [0]}, r"the pool main is \[0\]"),
        ({"main": ["two"]}, r"the pool main is \[two\]"),
        ({"main": [True]}, r"the pool main is \[true\]"),
        ({"main": [1], "agents": [1]}, "the pool name agents is reserved for agent loops"),
        ({"main": [1], "roles": ["critic"]}, r"roles=\[critic\]: give a pool for each role"),
        ({"main": [1], "roles": {"critics": "main"}}, "roles.critics: .*no such role; did you mean critic.*roles are"),
        ({"main": [1], "roles": {"ref": "main"}}, "roles.ref: actor, rollout and reference are one role, actor_"),
        ({"main": [1], "roles": {"critic": "mian"}}, "roles.critic=mian: there is no such pool; the pools are main"),
        ({"main": [1], "spare": [1]}, "no role runs on spare. The roles of this run are actor_rollout_ref; map one"),
    ],
)  # fmt: skip
def test_impossible_pools_are_refused(finish, pools, words):
    refused(rf"^trainer\.resource_pools.*{words}", finish, {POOLS: pools})


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({PER_NODE: 2}, [2]),
        ({PER_NODE: 64}, [8]),
        (TWO_NODES | {PER_NODE: 3}, [3, 3]),
        (TWO_NODES | {PER_NODE: 3, f"{ROLLOUT}.agent.num_workers": 5}, [3, 2]),
        (TWO_NODES | {PER_NODE: 3, f"{ROLLOUT}.agent.num_workers": 1}, [1]),
        ({POOLS: {"judge": [1], "main": [2], "roles": {"actor_rollout_ref": "main"}}} | JUDGE, [2]),
    ],
)
def test_agent_loops_are_spread_over_the_nodes_of_the_policy(finish, keys, found):
    assert agent_processes(finish(keys)[0]) == found


@pytest.mark.parametrize(
    ("keys", "split"),
    [
        ({PER_NODE: 1}, ModelSplit(1, 1, 1)),
        ({PER_NODE: 4}, ModelSplit(4, 4, 1)),
        ({PER_NODE: 4, f"{ACTOR}.fsdp_config.fsdp_size": 2}, ModelSplit(4, 2, 1)),
        ({PER_NODE: 4, f"{ACTOR}.fsdp_config.fsdp_size": 8}, ModelSplit(4, 4, 1)),
        (SLICED | {PER_NODE: 4}, ModelSplit(4, 4, 2)),
    ],
)
def test_a_pool_shares_a_model_as_the_keys_say(finish, keys, split):
    found = split_of(finish(keys)[0], ACTOR_MODEL)
    assert found == split and found.data == split.processes // split.ulysses


@pytest.mark.parametrize(
    ("keys", "key", "pool"),
    [
        ({PER_NODE: 4, f"{ACTOR}.ulysses_sequence_parallel_size": 3}, f"{ACTOR}.ulysses_sequence_parallel_size=3", "4"),
        ({f"{ACTOR}.ulysses_sequence_parallel_size": 2}, f"{ACTOR}.ulysses_sequence_parallel_size=2", "1"),
        ({PER_NODE: 6, f"{ACTOR}.fsdp_config.fsdp_size": 4}, f"{ACTOR}.fsdp_config.fsdp_size=4", "6"),
        (KL | {PER_NODE: 6, f"{REF}.fsdp_config.fsdp_size": 4}, f"{REF}.fsdp_config.fsdp_size=4", "6"),
        ({PER_NODE: 4, "critic.ulysses_sequence_parallel_size": 3}, "critic.ulysses_sequence_parallel_size=3", "4"),
        (APART | {"reward_model.model.fsdp_config.fsdp_size": 2}, "reward_model.model.fsdp_config.fsdp_size=2", "3"),
    ],
)
def test_pool_that_does_not_split_is_refused_with_sizes_that_do(finish, keys, key, pool):
    refused(f"^{key}: the {pool} processes of the pool .*choose one of 1", finish, keys, CRITIC)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (SLICED | {f"{ACTOR_MODEL}.use_remove_padding": False}, "parallel_size=2 with .*use_remove_padding=false"),
        ({f"{ACTOR_MODEL}.enable_activation_offload": True}, "offload=true: .*enable_gradient_checkpointing=true inst"),
    ],
)
def test_what_several_processes_cannot_do_is_refused(finish, keys, message):
    refused(message, finish, keys | {PER_NODE: 2})
    finish({f"{ACTOR_MODEL}.use_fused_kernels": True, PER_NODE: 2})


@pytest.mark.parametrize(("section", "model"), [(ACTOR, ACTOR_MODEL), ("critic", CRITIC_MODEL)])
def test_heads_that_do_not_split_are_refused(finish, section, model):
    config, _ = finish({PER_NODE: 4, f"{section}.ulysses_sequence_parallel_size": 4}, CRITIC)
    check_heads(config, model, facts_of(heads=8))
    said = rf"^{section}\.ulysses.*=4: {model}\.path=some/model has 6 .*1, 2, 3, 6"
    refused(said, check_heads, config, model, facts_of(heads=6))


def test_processes_may_share_gpus(finish):
    config, _ = finish({PER_NODE: 4, PER_GPU: 2})
    assert devices(config, frozenset(), 2)
    refused(r"n_gpus_per_node=4: 4 processes .* has 1; .*processes_per_gpu", devices, config, frozenset(), 1)
    refused("processes_per_gpu=2 with trainer.executor=ray: .*; set trainer.executor=processes", finish,
            {PER_NODE: 4, PER_GPU: 2, EXECUTOR: "ray"})  # fmt: skip
    assert told(finish({PER_GPU: 2})[1], "unused: trainer.processes_per_gpu")
    refused("executor=processes starts processes on this machine alone", finish, TWO_NODES | {EXECUTOR: "processes"})


def test_other_commands_still_run_on_one_machine():
    for schema in (SFT, RM, GENERATION):
        refused("several machines", load, ["trainer.nnodes=2"], schema, error=NotAvailable)
    loaded = load(["data.path=x", "rollout.agent.num_workers=2"], GENERATION)[0]
    assert told(loaded.notices, "no effect: rollout.agent.num_workers")


BATCH = {"data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 4, f"{ROLLOUT}.n": 8}
BF16 = {"actor_rollout_ref.model.dtype": "bf16"}


def test_each_process_holds_its_slices_and_a_whole_replica(finish):
    config, _ = finish(BATCH | BF16 | KL | {PER_NODE: 4}, CRITIC)
    memory = estimate_memory(config, sizes(), 2)
    assert (memory.weights, memory.masters, memory.moments) == (1_000_000, 0, 2_000_000), "float32 and its own master"
    assert memory.replica == 2_000_000 and memory.reference == 500_000, "whole in bfloat16; a quarter in bfloat16"
    assert memory.critic == 3_000_000 and memory.most("gradients") == 1_000_000
    assert memory.always == 1_000_000 + 2_000_000 + 2_000_000 + 500_000 + 3_000_000
    assert estimate_memory(finish(BATCH | {EXECUTOR: "ray", PER_NODE: 1})[0], sizes(), 2).replica == 0, "it shares them"
    config, _ = finish(BATCH | {PER_NODE: 4, f"{ACTOR}.fsdp_config.fsdp_size": 2})
    assert estimate_memory(config, sizes(), 2).moments == 8_000_000 // 2
    lines = plan_numbers(config, None, sizes())
    assert value(lines, "shards") == "2" and "there are 2 copies" in hows(lines)["shards"]
    config, _ = finish(BATCH | BF16 | {PER_NODE: 2, "actor_rollout_ref.model.lora_rank": 8})
    adapter = 8 * 4 * (2 * (128 + 128) + 2 * (128 + 64) + 3 * (128 + 512))
    memory = estimate_memory(config, sizes(), 2)
    assert memory.weights == (2 * 1_000_000 + 4 * adapter) // 2, "the base stays in bfloat16"
    assert memory.moments == 8 * adapter // 2
    assert memory.replica == 2 * (1_000_000 + adapter)


def test_what_layers_gather_is_counted(finish):
    layer, outside = 128 * 32 * 2 * 6 + 3 * 128 * 512, 1_000_000 - 4 * (128 * 32 * 2 * 6 + 3 * 128 * 512)

    def gathered(**keys):
        return estimate_memory(finish(BATCH | BF16 | {PER_NODE: 2} | keys)[0], sizes(), 2).most("gathered")

    gradients = (outside + layer) * (2 + 4)
    assert gathered() == (outside + 2 * layer) * 2 + gradients
    fused = estimate_memory(finish(BATCH | BF16 | {PER_NODE: 2})[0], sizes(model_type="qwen2"), 2).most("gathered")
    assert fused == gathered() + 2 * 128 * 512 * 2, "gate and up, merged for their product"
    assert gathered(**{f"{ACTOR}.fsdp_config.forward_prefetch": True}) == (outside + 3 * layer) * 2 + gradients
    assert gathered(**{f"{ACTOR}.fsdp_config.reshard_after_forward": False}) == 2 * 1_000_000 + gradients
    assert estimate_memory(finish(BATCH | BF16)[0], sizes(), 2).most("gathered") == 0
    offload = {f"{ACTOR}.fsdp_config.offload_policy": True}
    config, _ = finish(BATCH | BF16 | {PER_NODE: 2} | offload)
    memory = estimate_memory(config, sizes(), 2, on_gpu=True)
    assert (memory.weights, memory.moments, memory.most("gradients"), memory.most("brought")) == (0, 0, 0, 0)
    assert memory.always == memory.replica == 2_000_000 and memory.most("gathered") > 0
    assert not [turn for turn in memory.turns if turn.name.startswith("the optimiser")]
    parked, _ = finish(BATCH | BF16 | {PER_NODE: 2, f"{ACTOR}.fsdp_config.param_offload": True})
    memory = estimate_memory(parked, sizes(), 2, on_gpu=True)
    assert memory.weights == 0 and memory.moments == 4_000_000
    assert {turn.brought for turn in memory.turns if "pass" in turn.name} == {2_000_000}


def test_rows_and_tokens_are_dealt_to_processes(finish):
    config, _ = finish(BATCH | {PER_NODE: 3, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4})
    lines = plan_numbers(config, 100, None)
    assert value(lines, "processes: global_pool") == "3" and value(lines, "processes for agent loops") == "3"
    assert value(lines, "sequences per mini-batch") == "32"
    assert value(lines, "sequences per mini-batch and process") == "11"
    assert value(lines, "micro-batches per mini-batch") == "3"  # 11 / 4, rounded up
    assert value(lines, "steps in total") == "7"
    assert not [line for line in plan_numbers(finish(BATCH)[0], 100, None) if "process" in line.name]
    config, _ = finish(BATCH | {PER_NODE: 16})
    plan_micro_batches(config, sizes(), 2**40)
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 2  # 32 sequences over 16
    keys = BATCH | {PER_NODE: 4, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 4}
    config, _ = finish(keys | SLICED)
    lines = plan_numbers(config, None, sizes())
    assert value(lines, "slices of a sequence") == "2"
    assert value(lines, "sequences per mini-batch and 2 processes") == "16"
    whole = estimate_memory(finish(keys)[0], sizes(), 4)
    assert estimate_memory(config, sizes(), 4).most("activations") == whole.most("activations") // 2
    key = f"{ACTOR}.fsdp_config.fsdp_size"
    assert told(finish({PER_NODE: 4, key: 8})[1], f"{key}=8 is 4 here")
    assert not told(finish({PER_NODE: 4, key: 4})[1], f"{key}=4")


def test_processes_on_a_cpu_share_the_memory_of_the_machine(finish, monkeypatch):
    monkeypatch.setattr("burnish.config.plan.host_memory", lambda: 2**32)
    config, _ = finish(BATCH | {PER_NODE: 4})
    said = plan_micro_batches(config, sizes())
    assert all("of 1.0 GiB of memory" in one or "for 1.0 GiB of memory" in one for one in said) and len(said) == 2


def test_pools_are_planned_by_themselves(finish):
    keys = JUDGE | {POOLS: {"main": [2], "judge": [1], "roles": {"reward_model": "judge"}}}
    config, _ = finish(BATCH | keys)
    facts = sizes() | {REWARD_MODEL: facts_of(parameters=10**9)}
    assert estimate_memory(config, facts, 2).reward_model == 0
    judge = estimate_memory(config, facts, 2, pool="judge")
    assert judge.reward_model == 4 * 10**9 and judge.weights == judge.kv_cache == judge.replica == 0
    said = plan_micro_batches(config, facts, 2**33)
    assert told(said, "(reward_model.micro_batch_size_per_gpu)") and told(said, f"{ACTOR}.ppo_micro_batch_size_per_gpu")
    lines = plan_numbers(config, None, facts, memory_bytes=2**33)
    assert value(lines, "memory of judge: reward model") == gib(4 * 10**9)
    assert value(lines, "processes: main") == "2" and value(lines, "processes: judge") == "1"
    names = [line.name for line in lines]
    assert "estimated peak memory of main" in names and "memory of main: reward model" not in names
