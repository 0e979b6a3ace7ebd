"""Where the models of a run are: pools of processes, the roles on each pool, and how a pool shares one model. One
process on this machine is a pool of one; the rules in `rules/cluster.py` refuse what cannot be shared out."""

from collections.abc import Mapping
from dataclasses import dataclass

from burnish.config.fsdp import FSDPConfig
from burnish.config.ppo import ACTOR_MODEL, CRITIC_MODEL, PROCESS_REWARD_MODEL, REWARD_MODEL, PPOConfig

GLOBAL_POOL = "global_pool"
AGENTS, AGENT_LOOP = "agents", "agent_loop"  # the pool and the role of agent loops, which need no device
POLICY = "actor_rollout_ref"
ROLES = {  # role, as in controller/pool.py → the key of its model; the first to be loaded comes first
    "reward_model": REWARD_MODEL,
    POLICY: ACTOR_MODEL,
    "critic": CRITIC_MODEL,
    "process_reward": PROCESS_REWARD_MODEL,
}
ROLES_KEY = "roles"  # next to the pools in trainer.resource_pools
MOST_AGENT_WORKERS = 8  # where rollout.agent.num_workers is null


@dataclass(frozen=True)
class Pool:
    """Processes on each of some nodes, and the roles that share them."""

    name: str
    on_nodes: tuple[int, ...]
    roles: tuple[str, ...]

    @property
    def processes(self) -> int:
        return sum(self.on_nodes)

    @property
    def where(self) -> str:
        """`2 on each of 3 nodes`, `4 + 2 on 2 nodes` or, on one, `4`."""
        first, nodes = self.on_nodes[0], len(self.on_nodes)
        if nodes == 1:
            return str(first)
        if set(self.on_nodes) == {first}:
            return f"{first} on each of {nodes} nodes"
        return f"{' + '.join(map(str, self.on_nodes))} on {nodes} nodes"


@dataclass(frozen=True)
class ModelSplit:
    """How processes share a model: `shards` hold one copy together, `ulysses` work on the same sequences."""

    processes: int = 1
    shards: int = 1
    ulysses: int = 1

    @property
    def is_sharded(self) -> bool:
        """Whether FSDP2 holds the weights; a model in one process is as it was loaded."""
        return self.processes > 1

    @property
    def data(self) -> int:
        """The number of parts that rows are dealt into."""
        return max(1, self.processes // self.ulysses)


ALONE = ModelSplit()


def split_over(processes: int) -> ModelSplit:
    """Of a model that all of them share, each with a part of the rows."""
    return ModelSplit(processes, processes) if processes > 1 else ALONE


def pools_of(config: PPOConfig) -> list[Pool]:
    """The pools of models, the policy's among them; agent loops are not counted."""
    trainer, present = config.trainer, [role for role, model in ROLES.items() if model in config.models]
    if not trainer.resource_pools:
        per_node = trainer.n_gpus_per_node if isinstance(trainer.n_gpus_per_node, int) else 1
        return [Pool(GLOBAL_POOL, (per_node,) * trainer.nnodes, tuple(present))]
    counts = {name: tuple(value) for name, value in trainer.resource_pools.items() if name != ROLES_KEY}
    named: Mapping[str, str] = trainer.resource_pools.get(ROLES_KEY) or {}
    first = next(iter(counts))
    return [
        Pool(name, on_nodes, tuple(role for role in present if named.get(role, first) == name))
        for name, on_nodes in counts.items()
    ]


def pool_of(config: PPOConfig, model: str) -> Pool:
    """The pool that holds a model, by its key; the policy's for a model that this run has none of."""
    pools = pools_of(config)
    for role in (next(role for role, key in ROLES.items() if key == model), POLICY):
        for pool in pools:
            if role in pool.roles:
                return pool
    return pools[0]


def split_of(config: PPOConfig, model: str) -> ModelSplit:
    processes = pool_of(config, model).processes
    if processes == 1:
        return ALONE
    return ModelSplit(processes, shards_of(fsdp_of(config, model).fsdp_size, processes), ulysses_of(config, model))


def shards_of(fsdp_size: int, processes: int) -> int:
    """Processes that hold one copy together; there are as many copies as that leaves."""
    return processes if fsdp_size < 1 else min(fsdp_size, processes)


def fsdp_of(config: PPOConfig, model: str) -> FSDPConfig:
    """How a model is sharded; a process reward model has no separate keys for it."""
    sections = {
        ACTOR_MODEL: config.actor_rollout_ref.actor.fsdp_config,
        CRITIC_MODEL: config.critic.fsdp_config,
        REWARD_MODEL: config.reward_model.model.fsdp_config,
    }
    return sections.get(model) or FSDPConfig()


def ulysses_of(config: PPOConfig, model: str) -> int:
    sizes = {
        ACTOR_MODEL: config.actor_rollout_ref.actor.ulysses_sequence_parallel_size,
        CRITIC_MODEL: config.critic.ulysses_sequence_parallel_size,
    }
    return sizes.get(model, 1)


def agent_processes(config: PPOConfig) -> list[int]:
    """Processes that run agent loops, on each node: `rollout.agent.num_workers`, spread over the policy's nodes."""
    policy = pool_of(config, ACTOR_MODEL)
    asked = config.actor_rollout_ref.rollout.agent.num_workers
    count, nodes = asked or min(MOST_AGENT_WORKERS, policy.processes), len(policy.on_nodes)
    return [count // nodes + (node < count % nodes) for node in range(min(nodes, count))]


def describe(config: PPOConfig) -> str:
    """How many processes there are and where, in one line; empty for the one of the local executor."""
    if config.trainer.executor == "local":
        return ""
    pools, where = pools_of(config), config.ray_init.address
    counts = (sum(pool.processes for pool in pools), sum(agent_processes(config)))
    total, agents = (f"{count} process{'es' if count != 1 else ''}" for count in counts)
    parts = [f"{pool.name} {pool.where} ({', '.join(pool.roles)})" for pool in pools]
    ray = f"the Ray at {where}" if where else "a Ray of this machine"
    there = ray if config.trainer.executor == "ray" else "this machine"
    return f"{total} on {there}: {'; '.join(parts)}; and {agents} for agent loops, on CPUs"
