"""RayWorkerGroup: workers in separate processes, on one machine or many, started and watched by Ray.

    cluster.py  Cluster: a Ray that is connected to, and its nodes: a process's log read there, one that hangs ended
    group.py    connect: starts a Ray here or joins a cluster; RayWorkerGroup: the workers of one role on it; RayPeer
    hosts.py    Hosts: the worker processes of one pool (../host.py is what runs in them)
    future.py   RayFuture: the outcome of one call, or the error that says why there is none

A call waits for the answer of every worker. What unblocks it: the answers; a failure and a short grace, in which a more
telling one may come; the end of a process, which Ray reports; the deadline. When one worker has left a common call
while others wait for it in a collective, after a death, and past the deadline, all processes of the pool are ended:
every later call raises WorkerDied. Every tensor is put into Ray's object store once and read there by all processes of
a node.
"""

from burnish.controller.ray.future import RayFuture
from burnish.controller.ray.group import RayWorkerGroup, connect
from burnish.controller.ray.hosts import AT_ONCE, Hosts, Process

__all__ = ["AT_ONCE", "Hosts", "Process", "RayFuture", "RayWorkerGroup", "connect"]
