"""What runs in a worker process, here without one: jobs in order, answers that always arrive."""

import asyncio
import pickle
import re
import sys
import threading
import time

import pytest
import torch

from burnish.controller.dispatch import Dispatch, register
from burnish.controller.group import ClassWithInitArgs
from burnish.controller.host import WorkerHost, WorkerReply
from burnish.controller.process import Address, Surroundings
from burnish.controller.wire import flat, pack
from burnish.controller.worker import Worker, WorkerPlace
from burnish.errors import ConfigError, WorkerError


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
    async def give_away(self, seconds):
        await asyncio.sleep(seconds)
        return threading.Lock()


@pytest.fixture
def host(tmp_path):
    host = WorkerHost(Surroundings(str(tmp_path)), Address(1, "127.0.0.1", "here", "node", str(tmp_path / "log"), 0))
    host.make("busy", ClassWithInitArgs(Busy), WorkerPlace())
    return host


def parts(method, *args):
    skeleton, tensors = pack(("busy", method, args, {}))
    return [skeleton, *map(flat, tensors)]


async def call(host, number, method, *args):
    return await host.run(number, f"Busy.{method}", "call", parts(method, *args), True)


async def direct(host, method, *args):
    skeleton, tensors = pack((args, {}))
    return await host.direct("busy", method, skeleton, [*map(flat, tensors)])


def test_jobs_run_in_the_order_they_were_given_out_whatever_order_they_arrive_in(host):
    async def all_of_them():
        return await asyncio.gather(*[call(host, number, "note", number, 0.01) for number in (2, 0, 3, 1)])

    answers = [answer.value() for answer in asyncio.run(all_of_them())]
    assert max((seen for _, seen in answers), key=len) == [0, 1, 2, 3]
    assert {name for name, _ in answers} == {"compute_0"}
    answer = asyncio.run(host.run(4, "Busy.rows", "call", parts("rows", torch.ones(100)), False))
    assert answer.value() is None and not answer.memory, "a result that is not wanted is not sent"
    assert asyncio.run(call(host, 5, "rows", torch.ones(2))).value().tolist() == [2, 2]


def test_a_process_imports_the_libraries_of_the_run_when_it_joins(tmp_path):
    (tmp_path / "own.py").write_text("raise ValueError('broken')")
    libraries = {"critic.model.external_lib": str(tmp_path / "own.py")}
    host = WorkerHost(Surroundings(str(tmp_path), libraries=libraries), Address(1, "", "", "", "", 0))
    with pytest.raises(ConfigError, match=r"critic.model.external_lib=.*own.py: importing it failed\n[^$]*broken"):
        host.join(WorkerPlace(), None)


def test_peers_are_answered_while_a_job_computes(host):
    async def both():
        job = asyncio.ensure_future(call(host, 0, "hold"))
        while (there := await host.status()).doing != "Busy.hold" or "in hold\n" not in there.stack:
            await asyncio.sleep(0.02)
        answer = await direct(host, "direct", 7)
        where = await host.status()
        host._workers["busy"].released.set()
        await job
        return answer.value(), where, await host.status()

    (thread, x), where, after = asyncio.run(both())
    assert (thread, x) == ("MainThread", 7)
    assert where.doing == "Busy.hold" and "self.released.wait()" in where.stack
    assert after.doing == "no call"


def test_last_lines_are_those_before_the_stacks_also_when_asked_again(host, tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_text("about to hang\n")
    monkeypatch.setattr("burnish.controller.host.stacks", lambda thread: log.write_text(f"{log.read_text()}a stack\n"))

    async def ask_twice():
        return [(await host.status()).lines for _ in range(2)]

    assert asyncio.run(ask_twice()) == ["about to hang"] * 2
    log.write_text("more\n")
    assert asyncio.run(ask_twice()) == ["more"] * 2


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
        calls = [asyncio.ensure_future(direct(host, "stay")) for _ in range(2)]
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
    async def during_a_job():
        job = asyncio.ensure_future(call(host, 0, "note", 1, 0.3))
        reply = await direct(host, "give_away", 0.1)
        await job
        return reply

    with pytest.raises(WorkerError, match=r"the result of Busy.give_away, a lock, cannot be sent"):
        asyncio.run(during_a_job()).value()
    with pytest.raises(WorkerError, match=r"the result of Busy.x cannot be read here: UnpicklingError"):
        WorkerReply(b"\x80\x05garbage").value("Busy.x")
