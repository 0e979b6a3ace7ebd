"""Which roles run on which devices.

A ResourcePool is a number of processes on each of some nodes, one device for each. A ResourcePoolManager names the
pools and maps roles to them: roles of one pool share its devices, roles of different pools never do.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from burnish.controller.worker import WorkerPlace
from burnish.errors import ConfigError


class Role(StrEnum):
    """What a worker is for. Roles are strings, so a role of your own is any other string."""

    ActorRollout = "actor_rollout"
    Critic = "critic"
    RefPolicy = "ref"
    RewardModel = "reward_model"
    ProcessReward = "process_reward"
    ActorRolloutRef = "actor_rollout_ref"
    AgentLoop = "agent_loop"


class ResourcePool:
    """Processes on nodes: [8, 8] is eight on each of two nodes."""

    def __init__(self, process_on_nodes: Sequence[int], name: str = "pool", device: str = "auto"):
        counts = list(process_on_nodes)
        if not counts or not all(isinstance(count, int) and count > 0 for count in counts):
            raise ConfigError(
                f"trainer.resource_pools: pool {name!r} must be a list of positive numbers of devices, one for each "
                f"node, not {process_on_nodes!r}"
            )
        self.process_on_nodes, self.name, self.device = counts, name, device

    @property
    def world_size(self) -> int:
        return sum(self.process_on_nodes)

    def places(self) -> list[WorkerPlace]:
        local = [(rank, count) for count in self.process_on_nodes for rank in range(count)]
        return [WorkerPlace(rank, self.world_size, *local_rank, self.device) for rank, local_rank in enumerate(local)]

    def __repr__(self) -> str:
        return f"ResourcePool({self.process_on_nodes}, name={self.name!r}, device={self.device!r})"


class ResourcePoolManager:
    """Named pools, such as {"global_pool": [8, 8]}, and the roles that run on them: {Role.Critic: "global_pool"}."""

    def __init__(
        self,
        resource_pool_spec: Mapping[str, Sequence[int]],
        mapping: Mapping[Role, str] | Mapping[str, str],
        device: str = "auto",
    ):
        self.pools = {name: ResourcePool(counts, name, device) for name, counts in resource_pool_spec.items()}
        self.mapping: dict[str, str] = {role: name for role, name in mapping.items()}  # noqa: C416 (widens the key type)
        for role, name in self.mapping.items():
            if name not in self.pools:
                raise ConfigError(
                    f"trainer.resource_pools: role {str(role)!r} is mapped to pool {name!r}, which does not exist; "
                    f"there are: {', '.join(self.pools) or 'none'}"
                )
        if idle := sorted(set(self.pools) - set(self.mapping.values())):
            raise ConfigError(f"trainer.resource_pools: no role runs on {', '.join(idle)}; map one to it or remove it")

    def get_resource_pool(self, role: str) -> ResourcePool:
        if role not in self.mapping:
            raise ConfigError(
                f"trainer.resource_pools: role {str(role)!r} has no pool; mapped are: "
                f"{', '.join(map(str, self.mapping)) or 'none'}"
            )
        return self.pools[self.mapping[role]]

    def roles_of(self, pool_name: str) -> list[str]:
        """The roles that share a pool: what one `WorkerGroup.spawn` makes together."""
        return [role for role, name in self.mapping.items() if name == pool_name]

    def model_pools(self) -> list[ResourcePool]:
        """The pools that compute with models: all but those of agent loops alone, which need no device."""
        return [pool for name, pool in self.pools.items() if set(self.roles_of(name)) - {Role.AgentLoop}]

    def n_processes(self) -> int:
        return sum(pool.world_size for pool in self.model_pools())

    def check_devices(self, available: Sequence[int] | None) -> None:
        """Refuse pools that need more devices than are `available`, as `WorkerGroup.available_devices` gives them."""
        if available is None:
            return
        if self.n_processes() > sum(available):
            wanted = " + ".join(f"{pool.name} {pool.process_on_nodes}" for pool in self.model_pools())
            raise ConfigError(
                f"{self.n_processes()} devices asked for ({wanted}), but there are {sum(available)}; lower "
                "trainer.n_gpus_per_node or trainer.nnodes, or put more roles on one pool"
            )
        for pool in self.model_pools():
            if max(pool.process_on_nodes) > max(available):
                raise ConfigError(
                    f"pool {pool.name!r} needs {max(pool.process_on_nodes)} devices on one node, but no node has more "
                    f"than {max(available)}; lower trainer.n_gpus_per_node"
                )
