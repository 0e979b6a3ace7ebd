"""Processes: one or several, with Ray or without, pools that roles run on, and models that can be shared out over them.
`cluster` knows the keys alone; `devices`, called once torch is there, how many GPUs this machine has."""

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from burnish.config.engines import engine_spec
from burnish.config.fsdp import FSDPConfig
from burnish.config.model import ModelConfig
from burnish.config.nearest import nearest
from burnish.config.placement import (
    AGENTS,
    ROLES,
    ROLES_KEY,
    describe,
    fsdp_of,
    pool_of,
    pools_of,
    shards_of,
    ulysses_of,
)
from burnish.config.ppo import ACTOR_MODEL, CRITIC_MODEL, REWARD_MODEL, PPOConfig
from burnish.config.rules import Given
from burnish.config.values import show
from burnish.errors import ConfigError, NotAvailable, install_command

NODES, PER_NODE, EXECUTOR = "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.executor"
POOLS, ADDRESS, NUM_CPUS = "trainer.resource_pools", "ray_init.address", "ray_init.num_cpus"
EXAMPLE = "{main:[2],judge:[1],roles:{reward_model:judge}}"
WITH_THE_POLICY = ("actor", "rollout", "ref", "actor_rollout")  # roles that one worker plays together
OF_RAY = (NUM_CPUS, ADDRESS, "ray_init.timeline_json_file")
PER_GPU = "trainer.processes_per_gpu"
OF_SEVERAL = (
    "trainer.worker_timeout", "trainer.ray_wait_register_center_timeout", PER_GPU,
    "actor_rollout_ref.rollout.agent.num_workers",
)  # fmt: skip
ACTOR, REFERENCE = "actor_rollout_ref.actor", "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"
SECTIONS = {ACTOR_MODEL: ACTOR, CRITIC_MODEL: "critic", REWARD_MODEL: REWARD_MODEL}  # that have an fsdp_config
OF_SHARDS = ("fsdp_size", "reshard_after_forward", "forward_prefetch")


def cluster(config: PPOConfig, given: Given) -> None:
    """Choose the executor, and check what runs where. Runs after it is known which models there are."""
    _executor(config, given)
    if config.trainer.executor == "ray":
        spec = importlib.util.find_spec("ray")
        if spec is None or spec.origin is None:  # a folder of that name has no origin
            key = next((name for name in (EXECUTOR, POOLS, PER_NODE, NODES) if name in given), EXECUTOR)
            raise ConfigError(
                f"{key}: several machines need the package ray; install it with `{install_command('ray')}`, on every "
                "machine in the same version"
            )
        if config.trainer.processes_per_gpu > 1:
            raise ConfigError(
                f"{PER_GPU}={config.trainer.processes_per_gpu} with {EXECUTOR}=ray: Ray gives every process a GPU of "
                f"its own; set {EXECUTOR}=processes"
            )
        _pools(config, given)
        _address(config, given)
    elif config.trainer.executor == "processes":
        given.unused(f"{EXECUTOR} is processes: those of this machine, without Ray", *OF_RAY)
        _pools(config, given)
        if any(len(pool.on_nodes) > 1 for pool in pools_of(config)):
            raise ConfigError(f"{EXECUTOR}=processes starts processes on this machine alone; set {EXECUTOR}=ray")
    else:
        given.unused(f"{EXECUTOR} is local: one process, without Ray", *OF_SEVERAL, *OF_RAY)
    if config.trainer.n_gpus_per_node != "auto" or config.trainer.resource_pools:
        _split(config, given)


def devices(config: PPOConfig, explicit: frozenset[str], gpus: int) -> list[str]:
    """What had to wait until torch could be asked; `gpus` of this machine are used, 0 on a CPU. Returns notices."""
    given, trainer = Given(explicit), config.trainer
    if trainer.n_gpus_per_node == "auto" and not trainer.resource_pools:
        trainer.n_gpus_per_node = max(1, gpus)
        _split(config, given)
    rollout, spec = config.actor_rollout_ref.rollout, engine_spec(config.actor_rollout_ref.rollout.name)
    if gpus and config.trainer.executor != "local":
        refuse_spans(rollout.tensor_model_parallel_size)
    spec.check_devices(rollout, ROLLOUT, gpus, f"{ROLLOUT}.name=")
    # With Ray, other machines may have GPUs where this one has none.
    if trainer.device == "cpu" or (not gpus and trainer.executor != "ray"):
        spec.check_cpu(rollout, ROLLOUT, given, f"{ROLLOUT}.name=")
    wanted = sum(pool.processes for pool in pools_of(config))
    if gpus and wanted > gpus * trainer.processes_per_gpu and config.ray_init.address is None:
        key = f"{POOLS}={show(trainer.resource_pools)}" if trainer.resource_pools else f"{PER_NODE}={wanted}"
        raise ConfigError(
            f"{key}: {wanted} processes with a GPU each, and this machine has {gpus}; lower it, let processes share a "
            f"GPU ({PER_GPU}), train on the CPU (trainer.device=cpu), or name a cluster that has more in {ADDRESS}"
        )
    if not gpus and trainer.executor == "processes":
        given.unused("the run is on a CPU", PER_GPU)
    if said := describe(config):
        given.say(said)
    return given.notices


def refuse_spans(size: int) -> None:
    """NotAvailable for an engine over several GPUs, where processes see one each."""
    if size > 1:
        raise NotAvailable(
            f"{ROLLOUT}.tensor_model_parallel_size={size} on GPUs with several processes",
            "It was built and tried with processes on CPUs alone; leave it at 1, or train in one process "
            f"({EXECUTOR}=local), whose engine may have several GPUs",
        )


def _executor(config: PPOConfig, given: Given) -> None:
    trainer = config.trainer
    trainer.resource_pools = trainer.resource_pools or None
    per_node = 1 if trainer.n_gpus_per_node == "auto" else int(trainer.n_gpus_per_node)
    count, asked = trainer.nnodes * per_node, f"{NODES}={trainer.nnodes} × {PER_NODE}={trainer.n_gpus_per_node}"
    reason = f"{POOLS} is set" if trainer.resource_pools else f"{asked} is more than one process"
    several = count > 1 or trainer.resource_pools is not None
    pools = (trainer.resource_pools or {}).values()
    address = config.ray_init.address or os.environ.get("RAY_ADDRESS")
    many = trainer.nnodes > 1 or any(isinstance(counts, list) and len(counts) > 1 for counts in pools)
    if trainer.executor == "local" and several:
        raise ConfigError(f"{EXECUTOR}=local runs one process, but {reason}; leave one of them out")
    if trainer.executor == "auto":
        trainer.executor = ("ray" if many or address else "processes") if several else "local"
        if several:
            named = f", and there is a Ray at {address}" if address and not many else ""
            given.say(f"{EXECUTOR}={trainer.executor}, because {reason}{named}")
    if trainer.executor == "local":
        trainer.n_gpus_per_node = 1


def _pools(config: PPOConfig, given: Given) -> None:
    """Bring `trainer.resource_pools` into its plain form: lists of processes, and roles that this run has."""
    asked = config.trainer.resource_pools
    if asked is None:
        return
    given.unused(f"{POOLS} says how many processes there are", NODES, PER_NODE)
    pools = {str(name): _counts(str(name), value) for name, value in asked.items() if name != ROLES_KEY}
    if not pools:
        raise ConfigError(f"{POOLS} has no pool: name at least one, as in {POOLS}={EXAMPLE}")
    if AGENTS in pools:
        raise ConfigError(f"{POOLS}: the pool name {AGENTS} is reserved for agent loops; choose another name")
    named, present = _roles(asked.get(ROLES_KEY), pools), {role for role, key in ROLES.items() if key in config.models}
    if absent := sorted(set(named) - present):
        given.say(f"no effect: {POOLS}.{ROLES_KEY} of {', '.join(absent)} (this run has none)")
    config.trainer.resource_pools = {**pools, ROLES_KEY: {role: named[role] for role in named if role in present}}
    if idle := [pool.name for pool in pools_of(config) if not pool.roles]:
        raise ConfigError(
            f"{POOLS}: no role runs on {', '.join(idle)}. The roles of this run are {', '.join(sorted(present))}; map "
            f"one to it in {ROLES_KEY}, or remove it"
        )


def _counts(name: str, value: Any) -> list[int]:
    counts = value if isinstance(value, list) else [value]
    if not counts or not all(type(count) is int and count > 0 for count in counts):
        raise ConfigError(
            f"{POOLS}: the pool {name} is {show(value)}; give the number of processes on each of its nodes, as in "
            f"{{{name}:[2]}} for two on one node and {{{name}:[2,2]}} for two on each of two"
        )
    return counts


def _roles(asked: Any, pools: Mapping[str, list[int]]) -> dict[str, str]:
    if not isinstance(asked or {}, Mapping):
        raise ConfigError(f"{POOLS}.{ROLES_KEY}={show(asked)}: give a pool for each role, as in {POOLS}={EXAMPLE}")
    named = {str(role): str(pool) for role, pool in (asked or {}).items()}
    for role, pool in named.items():
        if role in WITH_THE_POLICY:
            raise ConfigError(
                f"{POOLS}.{ROLES_KEY}.{role}: actor, rollout and reference are one role, actor_rollout_ref; map that"
            )
        if role not in ROLES:
            hint = f"; did you mean {near}?" if (near := nearest(role, ROLES)) else ""
            raise ConfigError(
                f"{POOLS}.{ROLES_KEY}.{role}: there is no such role{hint} The roles are {', '.join(ROLES)}"
            )
        if pool not in pools:
            raise ConfigError(
                f"{POOLS}.{ROLES_KEY}.{role}={pool}: there is no such pool; the pools are {', '.join(pools)}"
            )
    return named


def _address(config: PPOConfig, given: Given) -> None:
    """Several nodes are those of a running cluster; one is started here where none is named."""
    ray, found = config.ray_init, os.environ.get("RAY_ADDRESS", "")
    if ray.address is None and found and "://" not in found:
        ray.address = found
        given.say(f"{ADDRESS}={found}, from the environment (RAY_ADDRESS)")
    nodes = max(len(pool.on_nodes) for pool in pools_of(config))
    if ray.address is None and nodes > 1:
        key = f"{POOLS} with a pool on {nodes} nodes" if config.trainer.resource_pools else f"{NODES}={nodes}"
        raise ConfigError(
            f"{key} needs a Ray cluster that is running: `ray start --head` on one machine, `ray start --address=…` on "
            f"the others, and {ADDRESS}=<host of the head>:6379 here (docs/cluster.md)"
        )
    if ray.address is not None and "://" in ray.address:
        raise ConfigError(
            f"{ADDRESS}={ray.address}: the run itself has to be on a machine of the cluster; start it there, with "
            f"{ADDRESS}=auto or <host of the head>:6379"
        )
    if ray.address is not None and ray.num_cpus is not None:
        raise ConfigError(
            f"{NUM_CPUS}={ray.num_cpus} with {ADDRESS}={ray.address}: a cluster that is running has the CPUs it was "
            f"started with (`ray start --num-cpus`); leave {NUM_CPUS} out"
        )


def _split(config: PPOConfig, given: Given) -> None:
    for model in config.models:
        if model in SECTIONS:
            section = SECTIONS[model]
            _check_section(config, model, section, fsdp_of(config, model), given)
            _check_divides(config, model, f"{section}.ulysses_sequence_parallel_size", ulysses_of(config, model))
        keys, ulysses, processes = config.models[model], ulysses_of(config, model), pool_of(config, model).processes
        if ulysses > 1 and not keys.use_remove_padding:
            raise ConfigError(
                f"{SECTIONS[model]}.ulysses_sequence_parallel_size={ulysses} with {model}.use_remove_padding=false: "
                "processes share lines of unpadded sequences; leave one of them out"
            )
        check_shared(model, keys, processes)
    if config.reads_reference and not config.actor_rollout_ref.model.has_lora:
        _check_section(config, ACTOR_MODEL, REFERENCE, config.actor_rollout_ref.ref.fsdp_config, given)
    name, pool = config.actor_rollout_ref.rollout.name, pool_of(config, ACTOR_MODEL)
    if config.actor_rollout_ref.actor.fsdp_config.param_offload and pool.processes == 1:
        why = "the rollout engine generates with the actor's own weights, in place"
        if engine_spec(name).own_weights:
            why = f"weights of an actor in one process are not parked, although {ROLLOUT}.name={name} has its own"
        raise ConfigError(
            f"{ACTOR}.fsdp_config.param_offload=true: {why}; use {ACTOR}.fsdp_config.optimizer_offload, "
            "actor_rollout_ref.model.enable_activation_offload, LoRA (actor_rollout_ref.model.lora_rank), or several "
            "processes, which have a copy for the engine"
        )
    # An engine over several devices has those of as many processes of one node.
    size = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    if pool.processes > 1 and any(count % size for count in pool.on_nodes):
        raise ConfigError(
            f"{ROLLOUT}.tensor_model_parallel_size={size}: the policy has {pool.where} processes, "
            f"which cannot be dealt out into engines over {size} each; choose a number that divides those of a node"
        )
    if all(pool.processes == 1 for pool in pools_of(config)):
        given.unused("there is one process to deal rows to", "trainer.balance_batch")


def check_shared(model: str, keys: ModelConfig, processes: int) -> None:
    """ConfigError for what processes that share a model cannot do with it. `model` is the key of its section."""
    if keys.enable_activation_offload and processes > 1:
        raise ConfigError(
            f"{model}.enable_activation_offload=true: what FSDP2 gathers for a layer would be taken for its "
            f"activations; with several processes set {model}.enable_gradient_checkpointing=true instead"
        )


def _check_section(config: PPOConfig, model: str, section: str, fsdp: FSDPConfig, given: Given) -> None:
    processes, prefix = pool_of(config, model).processes, f"{section}.fsdp_config."
    if processes == 1:
        given.unused(
            "one process holds the whole model: there is nothing to shard", *(prefix + name for name in OF_SHARDS)
        )
        if fsdp.offload_policy:
            raise ConfigError(
                f"{prefix}offload_policy=true is FSDP2's own, which shards a model over several processes, but there "
                f"is only one; use {prefix}param_offload or {prefix}optimizer_offload"
            )
        return
    _check_divides(config, model, f"{prefix}fsdp_size", shards_of(fsdp.fsdp_size, processes))
    if fsdp.fsdp_size > processes:
        given.say(f"{prefix}fsdp_size={fsdp.fsdp_size} is {processes} here: its pool has no more processes")
    if fsdp.offload_policy:
        names = [f"{prefix}{name}" for name in ("param_offload", "optimizer_offload") if getattr(fsdp, name)]
        given.no_effect(f"{prefix}offload_policy keeps all of it in host memory", *names)


def _check_divides(config: PPOConfig, model: str, key: str, size: int) -> None:
    pool = pool_of(config, model)
    if pool.processes % size:
        fitting = [str(other) for other in range(1, pool.processes + 1) if pool.processes % other == 0]
        raise ConfigError(
            f"{key}={size}: the {pool.processes} processes of the pool {pool.name} do not split into groups of {size}; "
            f"choose one of {', '.join(fitting)}, or another number of processes"
        )
