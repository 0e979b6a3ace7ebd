"""The single controller: one process calls methods of many workers as if they were local.

Read in this order:

    worker.py     Worker: the base of what holds a model and computes; WorkerPlace: where one of them runs
    decorator.py  `register`: says how calls of a method are split over workers and their results joined
    dispatch.py   the ways to split and join, as pure functions
    group.py      WorkerGroup: the workers of one class, with the registered methods bound; ClassWithInitArgs
    pool.py       Role, ResourcePool, ResourcePoolManager: which roles run on which devices
    local.py      LocalWorkerGroup: one worker in this process
    ray/          RayWorkerGroup: workers in separate processes, on one machine or many. What it is made of:
                  host.py      what runs in such a process
                  process.py   its log file, threads and network; what is reported of one that hangs or died
                  columns.py   how arguments and results cross: tensors through shared memory, without copies
                  failures.py  how errors cross, and which of several is the reason
"""

from burnish.controller.decorator import Execute, register
from burnish.controller.dispatch import Dispatch, DispatchPair, register_dispatch
from burnish.controller.group import ClassWithInitArgs, Future, Peer, WorkerGroup
from burnish.controller.pool import ResourcePool, ResourcePoolManager, Role
from burnish.controller.worker import Worker, WorkerPlace

__all__ = [
    "ClassWithInitArgs",
    "Dispatch",
    "DispatchPair",
    "Execute",
    "Future",
    "Peer",
    "ResourcePool",
    "ResourcePoolManager",
    "Role",
    "Worker",
    "WorkerGroup",
    "WorkerPlace",
    "register",
    "register_dispatch",
]
