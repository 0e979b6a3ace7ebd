"""The base of users' workers."""

from typing import Any

from burnish.controller import worker
from burnish.errors import NotAvailable


class Worker(worker.Worker):
    """`rank`, `world_size` and `device` are known before `__init__`; several processes share a process group."""

    def __init__(self, cuda_visible_devices: Any = None):
        super().__init__()

    def _register_dispatch_collect_info(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        """Rows are split over all workers of a group, each of which answers."""
        if dp_rank != self.rank or not is_collect:
            raise NotAvailable(
                f"mesh {mesh_name!r} with dp_rank={dp_rank}, is_collect={is_collect} on rank {self.rank}",
                "Split by Dispatch.TOGETHER, where each worker takes its own rows and rank 0 answers.",
            )
