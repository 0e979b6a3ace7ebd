"""What runs in a worker process, here without one: jobs in order, answers that always arrive."""

import asyncio
import pickle
import re
import sys
import threading
import time

import pytest
import torch

from burnish.controller.columns import flat, pack
from burnish.controller.decorator import register
from burnish.controller.dispatch import Dispatch
from burnish.controller.group import ClassWithInitArgs
from burnish.controller.host import WorkerHost, WorkerReply
from burnish.controller.process import Address, Surroundings
from burnish.controller.worker import Worker, WorkerPlace, device_of
from burnish.errors import WorkerError


class Busy(Worker):
    def __init__(self):
        self.seen = []
        self.released, self.free = threading.Event(), asyncio.Event()

    def note(self, value, seconds=0.0):
        time.sleep(seconds)
        self.seen.append(value)
        return threading.current_thread().name, list(self.seen)

    def hold(self):
        self.released.wait()

    def leave(self):
        sys.exit(3)

    def give_lock(self):
        return threading.Lock()

    def rows(self, x):
        return x * 2

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def direct(self, x):
        return threading.current_thread().name, x

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def stay(self):
        await self.free.wait()

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def give_away(self, seconds, value=None):
        await asyncio.sleep(seconds)
        return threading.Lock() if value is None else value


@pytest.fixture
def host(tmp_path):
    host = WorkerHost(Surroundings(str(tmp_path)), Address(1, "127.0.0.1", "here", "node", str(tmp_path / "log"), 0))
    host.make("busy", ClassWithInitArgs(Busy), WorkerPlace())
    return host


def parts(method, *args, **kwargs):
    skeleton, tensors = pack(("busy", method, args, kwargs))
    return [skeleton, *map(flat, tensors)]


async def call(host, number, method, *args, **kwargs):
    return await host.run(number, f"Busy.{method}", "call", parts(method, *args, **kwargs), True)


def test_jobs_run_in_the_order_they_were_given_out_whatever_order_they_arrive_in(host):
    async def all_of_them():
        return await asyncio.gather(*[call(host, number, "note", number, 0.01) for number in (2, 0, 3, 1)])

    answers = [answer.value() for answer in asyncio.run(all_of_them())]
    assert max((seen for _, seen in answers), key=len) == [0, 1, 2, 3]
    assert {name for name, _ in answers} == {"compute_0"}


def test_peers_are_answered_while_a_job_computes(host):
    async def both():
        job = asyncio.ensure_future(call(host, 0, "hold"))
        while (there := await host.status()).doing != "Busy.hold" or "in hold\n" not in there.stack:
            await asyncio.sleep(0.02)
        answer = await host.direct("busy", "direct", *_message(7))
        where = await host.status()
        host._workers["busy"].released.set()
        await job
        return answer.value(), where, await host.status()

    (thread, x), where, after = asyncio.run(both())
    assert (thread, x) == ("MainThread", 7)
    assert where.doing == "Busy.hold" and "self.released.wait()" in where.stack
    assert after.doing == "no call"


def _message(*args):
    skeleton, tensors = pack((args, {}))
    return skeleton, [flat(tensor) for tensor in tensors]


def test_a_result_that_is_not_wanted_is_not_sent(host):
    answer = asyncio.run(host.run(0, "Busy.rows", "call", parts("rows", torch.ones(100)), False))
    assert answer.value() is None and not answer.memory
    assert asyncio.run(host.run(1, "Busy.rows", "call", parts("rows", torch.ones(2)), True)).value().tolist() == [2, 2]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("leave", r"Busy.leave left by sys.exit\(3\)"),
        ("give_lock", r"the result of Busy.give_lock, a lock, cannot be sent: TypeError"),
        ("absent", r"Busy.absent failed on rank 0 of 1: AttributeError"),
    ],
)
def test_every_job_answers_and_the_next_one_runs(host, method, message):
    async def two():
        return await call(host, 0, method), await call(host, 1, "note", 1)

    failing, fine = asyncio.run(two())
    with pytest.raises(WorkerError, match=message):
        failing.value()
    assert fine.value()[1] == [1]


def test_arguments_that_cannot_be_read_here(host, monkeypatch):
    module = type(sys)("only_there")
    module.Thing = type("Thing", (), {"__module__": "only_there"})
    monkeypatch.setitem(sys.modules, "only_there", module)
    content = pickle.dumps(("busy", "note", (module.Thing(),), {}))
    monkeypatch.delitem(sys.modules, "only_there")
    answer = asyncio.run(host.run(0, "Busy.note", "call", [content], True))
    with pytest.raises(WorkerError, match=r"the arguments of Busy.note cannot be read .*ModuleNotFoundError"):
        answer.value()


def test_calls_of_peers_are_reported_while_they_run(host):
    async def look():
        start = time.monotonic()
        calls = [asyncio.ensure_future(host.direct("busy", "stay", *_message())) for _ in range(2)]
        await asyncio.sleep(0.1)
        during, passed = await host.status(), time.monotonic() - start
        host._workers["busy"].free.set()
        await asyncio.gather(*calls)
        return during, passed, await host.status()

    during, passed, after = asyncio.run(look())
    assert during.doing == "no call" and [what for what, _ in during.peers] == ["Busy.stay"] * 2
    assert 0.05 < during.peers[0][1] < passed and "await self.free.wait()" in during.stack
    assert re.match(r"runs Busy.stay for others since \d+ s", str(during))
    assert after.peers == ()


def test_a_result_that_cannot_be_sent_or_read_names_its_own_call(host):
    async def beside_a_job():
        job = asyncio.ensure_future(call(host, 0, "note", 1, 0.3))
        reply = await host.direct("busy", "give_away", *_message(0.1))
        await job
        return reply

    with pytest.raises(WorkerError, match=r"the result of Busy.give_away, a lock, cannot be sent"):
        asyncio.run(beside_a_job()).value()
    with pytest.raises(WorkerError, match=r"the result of Busy.x cannot be read here: UnpicklingError"):
        WorkerReply(b"\x80\x05garbage").value("Busy.x")


@pytest.mark.parametrize(
    ("seen", "gpu", "index"),
    [(1, None, 0), (1, 0, 0), (4, None, 2), (4, 3, 3)],
    ids=["one", "the one given", "local rank", "the one given of all"],
)
def test_a_place_and_its_worker_have_one_device(monkeypatch, seen, gpu, index):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    place = WorkerPlace(6, 8, 2, 4, "cuda", gpu)
    assert device_of(place) == torch.device("cuda", index) == ClassWithInitArgs(Busy).make(place).device
