"""RayWorkerGroup: workers in separate processes, on one machine or many, started and watched by Ray.

    cluster.py  Cluster: a Ray that is connected to, and its nodes
    group.py    connect: starts a Ray here or joins a cluster; RayWorkerGroup: the workers of one role on it
    hosts.py    Hosts: the worker processes of one pool (../host.py is what runs in them)
    future.py   RayFuture: the outcome of one call, or the error that says why there is none
    peer.py     RayPeer: one worker, as workers of other processes call it
    nodes.py    what is done on the node of a process: its log read, a process that hangs ended

A call waits for the answer of every worker. What unblocks it: the answers; a failure and a short grace, in which a more
telling one may come; the end of a process, which Ray reports; the deadline. When one worker has left a common call
while others wait for it in a collective, it cannot finish. So then, after a death, and past the deadline, all
processes of the pool are ended: nothing hangs, and every later call raises WorkerDied.

Arguments are sent as bytes and the memory of tensors (columns.py). Every tensor is put into Ray's object store once and
read there by all processes of a node. So are results: the controller has no copy of them but reads the store, and what
it sends on is not put there again. Ray is imported in this folder only.
"""

from burnish.controller.ray.cluster import Cluster
from burnish.controller.ray.future import RayFuture
from burnish.controller.ray.group import RayWorkerGroup, connect
from burnish.controller.ray.hosts import AT_ONCE, INLINE, Hosts, Process
from burnish.controller.ray.peer import RayPeer

__all__ = [
    "AT_ONCE",
    "INLINE",
    "Cluster",
    "Hosts",
    "Process",
    "RayFuture",
    "RayPeer",
    "RayWorkerGroup",
    "connect",
]
