"""The single controller: one process calls methods of many workers as if they were local.

worker.py     Worker: the base of what holds a model and computes; WorkerPlace: where one of them runs
dispatch.py   `register`: says how calls of a method are split over workers and their results joined
group.py      WorkerGroup: the workers of one class, with the registered methods bound; ClassWithInitArgs
pool.py       Role, ResourcePool, ResourcePoolManager: which roles run on which devices
local.py      LocalWorkerGroup: one worker in this process
remote.py     RemoteWorkerGroup: workers in separate processes, on one machine or many. What it is made of:
              hosts.py     Hosts: the processes of one pool, to which jobs are given
              future.py    JobFuture: the outcome of one call, or the error that says why there is none
              cluster.py   Cluster, Line: what an executor does, as processes/ and ray/ do
              host.py      WorkerHost: what runs in such a process
              process.py   its log file, threads and network; what is reported of one that hangs or died
              wire.py      how arguments, results and errors cross
"""

from burnish.controller.dispatch import Dispatch, DispatchPair, Execute, register, register_dispatch
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
