"""Worker processes of every executor: what they share, what is sent, and that every way to fail ends soon and says what
happened.

`gang` uses the processes that run anyway (conftest.py); tests that end processes start two of their own.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from burnish.controller.cluster import Lacking, Lost, Process
from burnish.controller.dispatch import Dispatch, register
from burnish.controller.future import JobFuture
from burnish.controller.group import ClassWithInitArgs
from burnish.controller.hosts import Hosts
from burnish.controller.pool import ResourcePool
from burnish.controller.process import Address
from burnish.controller.wire import Weight
from burnish.controller.worker import Worker, WorkerPlace
from burnish.errors import DeadlineError, NotAvailable, WorkerDied, WorkerError, WorkersLate
from burnish.protocol import DataProto
from tests.processes import is_running, until

pytestmark = pytest.mark.usefixtures("by_value")


# Tests that start processes of their own take seconds for each with Ray: there they are long trials.
STARTED = pytest.mark.parametrize(
    "executor", ["processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.cluster])], indirect=True
)
LATE = 5.0  # seconds for a call where a test wants a deadline to pass; set when what is to hang hangs
SOON = 60.0  # seconds for what happens at once, on a busy machine


class Member(Worker):
    """Computes with the others, and fails in every way there is."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def pid(self):
        return os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def surroundings(self):
        return os.getcwd(), torch.get_num_threads(), os.environ.get("GLOO_SOCKET_IFNAME", "")

    @register(dispatch_mode=Dispatch.TOGETHER)
    def total(self, data):
        mine = data.batch["x"][self.rank :: self.world_size].sum()
        torch.distributed.all_reduce(mine)
        facts = {"own memory": data.batch["x"].numpy().flags.owndata}
        return DataProto.from_dict({"total": mine.reshape(1)}, meta_info=facts)

    @register(dispatch_mode=Dispatch.TOGETHER)
    def doubled(self, data):
        return DataProto.from_dict({"y": data.batch["x"] * 2})

    @register(dispatch_mode=Dispatch.TOGETHER)
    def trouble(self, how, rank=1):
        print(f"rank {self.rank} is about to {how}")
        if self.rank == rank:
            match how:
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(60)  # the signal may reach another thread first
                case "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                    time.sleep(60)
                case "refuse":
                    raise NotAvailable("flying", "walk")
        torch.distributed.barrier()

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def warn(self, text):
        logging.getLogger("burnish.member").warning(text)
        logging.getLogger("burnish.member").info("not sent")

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def nap(self, seconds, result=None):
        time.sleep(seconds)
        return result

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def hold(self, until, result):
        while not os.path.exists(until):
            time.sleep(0.02)
        return result

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def lock(self):
        return threading.Lock()

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def generate(self, seconds, result=None):
        self.running = getattr(self, "running", 0) + 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.running -= 1
        return self.running, result

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def suffer(self, how, until=""):
        """Die, or hang until a file is there."""
        print(f"about to {how}")
        match how[self.rank]:
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)
            case "block":
                while not os.path.exists(until):
                    time.sleep(0.05)
            case "wait":
                while not os.path.exists(until):
                    await asyncio.sleep(0.05)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ask(self, peers, method, *args):
        async def all_of_them():
            return await asyncio.gather(*[peer.call(method, *args) for peer in peers])

        return asyncio.run(all_of_them())


@pytest.fixture
def gang(running):
    """Four processes, all of them, which is the process group they are in."""
    return running.spawn(ResourcePool([4], "gang", "cpu"), {"gang": ClassWithInitArgs(Member)})["gang"]


@pytest.fixture
def pair(groups):
    """Two processes of its own."""
    group = groups.spawn(ResourcePool([2], "pair", "cpu"), {"pair": ClassWithInitArgs(Member)})["pair"]
    yield group
    group.shutdown()


def asked(group, rank):
    """What a process says of itself; None where it does not answer."""
    process = group._hosts.processes[rank]
    return group._hosts.status([process])[id(process)]


def gone(pid):
    return until(lambda: not is_running(int(pid)))


@pytest.fixture
def puts(gang, monkeypatch):
    """Bytes of each column that this process keeps where the others read it."""
    found, store = [], gang.cluster.store
    monkeypatch.setattr(gang.cluster, "store", lambda memory: found.append(memory.nbytes) or store(memory))
    return found


def test_column_is_stored_once_and_read_there_by_workers_that_compute_together(gang, puts):
    data = DataProto.from_dict({"x": torch.ones(100_000)})
    first = gang.total(data)
    assert first.batch["total"].tolist() == [100_000]
    gang.total(data)
    gang.total(data.select(["x"]))
    assert puts == [400_000]
    assert first.meta_info == {"own memory": False}
    data.batch["x"][:10] = 5
    assert gang.total(data).batch["total"].tolist() == [100_040]
    assert puts == [400_000] * 2


def test_result_is_read_where_it_is_stored_and_sent_on_without_a_copy(gang, puts):
    given = DataProto.from_dict({"x": torch.ones(100_000)})
    batch = given.union(gang.doubled(given))
    assert not batch.batch["y"].numpy().flags.owndata
    assert gang.total(batch.select(["y"]).rename("y", "x")).batch["total"].tolist() == [200_000]
    assert puts == [400_000], "the column x alone; y was put by the worker that made it"


def test_processes_take_over_the_surroundings_and_are_shared_by_roles(gang, running, caplog):
    found = gang.surroundings()
    assert {folder for folder, _, _ in found} == {os.getcwd()}
    assert {threads for _, threads, _ in found} == {1}  # OMP_NUM_THREADS of the tests
    assert all(interface for _, _, interface in found)
    gang.warn("the tokenizer is odd")
    assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
        ("burnish.member", "WARNING", "the tokenizer is odd")
    ]
    workers = {"actor": ClassWithInitArgs(Member), "critic": ClassWithInitArgs(Member)}
    groups = running.spawn(ResourcePool([2], "both", "cpu"), workers)
    assert groups["actor"].pid() == groups["critic"].pid()
    assert len({*groups["actor"].pid(), os.getpid()}) == 3


def test_starting_does_not_wait_and_what_cannot_be_sent_is_named_and_changes_nothing(gang, tmp_path):
    released = tmp_path / "released"
    try:
        future = gang.hold.start(str(released), "done")  # which would end late if it were waited for
        with pytest.raises(DeadlineError, match=r"Member.hold has not finished within 0.01 s; it continues"):
            future.get(timeout=0.01)
    finally:
        released.touch()
    assert future.get() == future.get() == "done"
    with pytest.raises(WorkerError, match=r"Member.nap: its arguments cannot be sent to the workers: .*lock"):
        gang.nap(0, threading.Lock())
    with pytest.raises(WorkerError, match=r"the result of Member.lock, a lock, cannot be sent"):
        gang.lock()
    assert gang.nap(0, 1) == 1


def test_workers_call_workers_of_another_group(running, gang):
    # the callers are on the same processes here: their loops answer while their jobs wait
    callers = running.spawn(ResourcePool([4], "callers", "cpu"), {"callers": ClassWithInitArgs(Member)})
    answers = callers["callers"].ask(gang.peers(), "generate", 0.2, torch.ones(2))
    assert len(answers) == 4 and all(len(each) == 4 for each in answers)
    assert torch.equal(answers[0][0][1], torch.ones(2))


def test_cancelling_the_wait_cancels_the_call(gang):
    async def cancel(peer):
        waiting = asyncio.ensure_future(peer.call("generate", 60))
        while not (await peer.call("generate", 0.0))[0]:
            await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        for _ in range(500):
            if not (await peer.call("generate", 0.0))[0]:
                return True
            await asyncio.sleep(0.02)
        return False

    assert asyncio.run(cancel(gang.peers()[0]))


@STARTED
def test_dead_process_is_named(pair):
    pids = pair.pid()
    with pytest.raises(WorkerDied) as e:
        pair.trouble("die")
    text = str(e.value)
    assert text.startswith(f"rank 1 of 2 of pool 'pair' (pair), pid {pids[1]} on ")
    assert "died while it ran Member.trouble: its process ended" in text
    assert "last lines of " in text and "rank 1 is about to die" in text
    assert all(map(gone, pids))  # nobody waits in a collective for ever
    words = r"Member.pid cannot run: the processes of pool 'pair' were ended: rank 1 of 2"
    with pytest.raises(WorkerDied, match=words):
        pair.pid()
    with pytest.raises(WorkerDied, match=r"rank 0 of 2 of pool 'pair'.* died while it ran generate"):
        asyncio.run(pair.peers()[0].call("generate", 0))


@STARTED
def test_hanging_process_is_named(pair, monkeypatch):
    pids = pair.pid()
    future = pair.trouble.start("stop")
    assert until(lambda: Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert until(lambda: (there := asked(pair, 0)) and "torch.distributed.barrier()" in there.stack)
    monkeypatch.setattr(pair.cluster, "deadline_s", LATE)
    with pytest.raises(WorkersLate) as e:
        future.get()
    lines = str(e.value).splitlines()
    assert lines[0].startswith(
        "Member.trouble has not finished within 5 s (trainer.worker_timeout); of 2 workers, these"
    )
    assert lines[1].startswith(f"- rank 1 of 2 of pool 'pair' (pair), pid {pids[1]} on ")  # it tells most
    assert lines[1].endswith("does not answer: stopped, or stuck")
    assert "rank 1 is about to stop" in str(e.value)
    [other] = [number for number, line in enumerate(lines) if line.startswith("- rank 0 of 2")]
    assert lines[other].endswith("is in Member.trouble") and "torch.distributed.barrier()" in "\n".join(lines[other:])
    assert all(map(gone, pids))
    with pytest.raises(WorkerDied, match=r"were ended: Member.trouble has not finished within 5 s"):
        pair.pid()


@STARTED
def test_refusal_while_others_wait_in_a_collective(pair):
    pids = pair.pid()
    start = time.monotonic()
    with pytest.raises(NotAvailable, match=r"^not available yet: flying. walk$"):
        pair.trouble("refuse")
    assert time.monotonic() - start < 50, "before the deadline"
    assert all(map(gone, pids))


def not_ended(group):
    """Hosts that only note why they would be ended."""
    hosts, ended = Hosts("gang", group._hosts.processes, group.cluster), []
    hosts.end = ended.append
    return hosts, ended


def test_broken_connection_of_a_collective_ends_the_group(gang):
    """As after a network failure: all that is heard is that a collective lost a worker."""
    hosts, ended = not_ended(gang)
    future = JobFuture(hosts, "Member.total", {}, 1)
    future._failures = [(Weight.BROKEN, rank, WorkerError(f"gloo {rank}")) for rank in (2, 1)]
    error = future._most_telling()
    assert type(error) is WorkerDied
    assert str(error) == "Member.total: rank 1 lost its connection to the others: gloo 1" == ended[0]
    future._failures.append((Weight.DIED, 3, WorkerDied("rank 3 died")))
    future._dead[3] = hosts.processes[3]
    assert str(future._most_telling()).startswith("rank 3 died\nlast lines of ")


def test_peer_that_dies_is_named_to_the_controller(groups, running):
    pool = ResourcePool([1], "replicas", "cpu")
    replica = groups.spawn(pool, {"replica": ClassWithInitArgs(Member)})["replica"]
    callers = running.spawn(ResourcePool([2], "callers", "cpu"), {"callers": ClassWithInitArgs(Member)})
    [pid] = replica.pid()
    with pytest.raises(WorkerDied) as e:
        callers["callers"].ask(replica.peers(), "suffer", ["die"])
    text = str(e.value)
    assert text.startswith(f"replica, rank 0 of 1 of pool 'replicas' (replica), pid {pid} on {socket.gethostname()} (")
    assert "died while it ran suffer: its process ended" in text
    assert text.count("last lines of ") == 1 and "replicas-0.log:" in text and "about to ['die']" in text
    assert len(callers["callers"].pid()) == 2, "those that reported it continue"
    with pytest.raises(WorkerDied, match=r"rank 0 of 1 of pool 'replicas'.* died while it ran Member.pid"):
        replica.pid()


@STARTED
def test_peers_that_hang_are_named_when_those_that_wait_for_them_are_late(pair, gang, monkeypatch, tmp_path):
    pids = gang.pid()
    pair.pid()
    released = tmp_path / "released"
    try:
        future = pair.ask.start(gang.peers()[:2], "suffer", ["wait", "block"], str(released))
        assert until(lambda: (there := asked(gang, 0)) and len(there.peers) == 2)  # both have asked
        assert until(lambda: asked(gang, 1) is None)
        monkeypatch.setattr(pair.cluster, "deadline_s", LATE)  # not of the peers, whose calls would end as late
        with pytest.raises(WorkersLate) as e:
            future.get()
    finally:
        released.touch()
    lines = str(e.value).splitlines()
    told = [line for line in lines if line.startswith(("- ", "they "))]
    assert [line.startswith(f"- rank {rank} of 2 of pool 'pair'") for rank, line in enumerate(told[:2])] == [True] * 2
    assert told[0].endswith("is in Member.ask")
    assert told[2] == "they may wait for these, which run calls of others, or do not answer:"
    assert f"pid {pids[1]} on " in told[3] and told[3].endswith("does not answer: stopped, or stuck")
    assert f"pid {pids[0]} on " in told[4] and "runs Member.suffer for others since " in told[4] and len(told) == 5
    assert "await asyncio.sleep(0.05)" in str(e.value)


def test_deadline_of_a_peer_call_counts_the_rounds_it_waits_for(gang, monkeypatch, tmp_path):
    monkeypatch.setattr(gang.cluster, "deadline_s", 0.5)
    [peer, *_], released = gang.peers(2), tmp_path / "released"
    told = r"suffer of gang, rank 0 of 4 .*has not finished within 1 s \(2 × trainer\.worker_timeout\); it "
    try:
        with pytest.raises(WorkersLate, match=told):
            asyncio.run(peer.call("suffer", ["wait"] * 4, str(released)))
    finally:
        released.touch()


def test_deadline_of_a_call_starts_when_its_processes_are_free():
    hosts = SimpleNamespace(cluster=SimpleNamespace(deadline_s=10.0))
    process = Process(None, WorkerPlace(), Address(0, "", "", "", "", 0))
    first, second = (JobFuture(hosts, "it", {number: (process, number)}, None) for number in range(2))
    assert first._due() == first._given + 10
    assert second._due() == second._given + 20, "the first may take as long as it may"
    process.done, process.free_since = 1, second._given + 4
    assert second._due() == second._given + 14


def test_answer_that_has_arrived_is_taken_and_a_result_that_cannot_be_fetched_in_time_waited_for(gang, monkeypatch):
    cluster = gang.cluster
    future = gang.nap.start(0, "done")
    assert cluster.wait(list(future._future._waiting), SOON)
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "deadline_s", 0.0)
        assert future.get() == "done"

    def slow(places, seconds):
        raise TimeoutError("not here yet")

    future = gang.doubled.start(DataProto.from_dict({"x": torch.ones(100_000)}))
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "stored", slow)
        with pytest.raises(DeadlineError, match=r"Member.doubled has not finished within 0.5 s; it continues") as e:
            future.get(timeout=0.5)
    assert type(e.value) is DeadlineError
    assert future.get().batch["y"][0] == 2


def test_cluster_that_does_not_answer_any_more_raises_a_typed_error(gang, monkeypatch):
    def broken(handles, seconds):
        raise Lost("Ray does not answer: the head is gone", Lacking.CLUSTER)

    hosts, ended = not_ended(gang)
    future = hosts.give("Member.pid", "call", [("gang", "pid", (), {})] * 4)
    with monkeypatch.context() as patch:
        patch.setattr(gang.cluster, "wait", broken)
        with pytest.raises(WorkerDied, match=r"^Member.pid cannot finish: Ray does not answer: the head is gone"):
            future.get()
    assert len(ended) == 1
