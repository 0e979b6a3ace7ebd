"""An engine that hangs or dies is replaced: one new engine, every request answered, and with the same tokens.

With a scripted engine; `test_replacing_engines.py` does it to real ones.
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from burnish import waits
from burnish.errors import EngineLost, RolloutError
from burnish.rollout import replacing as replacing_module
from burnish.rollout.base import Completion, Request, RolloutEngine, Sampling
from burnish.rollout.hosted.engine import HEARTBEAT_S
from burnish.rollout.hosted.process import CLOSE_S, START_S
from burnish.rollout.replacing import REPLACING_S, RESTARTS, ReplacingEngine
from burnish.waits import longest
from burnish.workers.rollouts import engine_metrics, replica_metrics
from tests.rollout.asking import PATIENT_S, from_threads, in_time, log_is_whole, passes, polled


class Shop:
    """Makes engines one after the other, and says what each of them does."""

    def __init__(self):
        self.engines = []
        self.fates = {}  # number of an engine → "hangs", "dies", "refuses", "is slow", …
        self.opens, self.making = threading.Event(), threading.Event()  # new engines are made once the first is set
        self.opens.set()
        self.broken = 0  # new engines that cannot be made
        self.version = 0  # of the weights that new ones have
        self.kept = False  # whether an engine that dies after a publish has kept the weights
        self.tokens = lambda number, seed: [seed, seed + 1, seed + 2]
        self.told = 3  # tokens that an engine tells of before it hangs
        self.poison = None  # seed of the request that ends its engine, when that has answered others

    def make(self):
        self.engines.append(Fake(self, len(self.engines)))
        return self.engines[-1]


class Fake(RolloutEngine):
    """Answers at once, or not at all."""

    context = vocabulary = 100

    def __init__(self, shop, number):
        self.shop, self.number, self.version = shop, number, shop.version
        self.orders, self.aborted = [], []
        self.why = None
        self.waiting = {}  # request → the loop and the future of one that gets no answer
        self.requests = self.answered = 0
        self.is_closed = False

    @property
    def fate(self):
        return self.shop.fates.get(self.number)

    async def generate(self, request, on_token=None):
        self.requests += 1
        seed, request_id = request.sampling.seed, request.request_id
        tokens = self.shop.tokens(self.number, seed)
        told = tokens if self.fate is None else tokens[: self.shop.told]
        for token in told if on_token is not None else ():
            on_token(token, -1.0)
        if seed == self.shop.poison:
            await polled(lambda: self.answered > 1)
            raise EngineLost(f"request {request_id}: engine {self.number} cannot read it")
        if self.fate == "refuses":
            raise RolloutError(f"request {request_id}: not this one")
        if self.fate == "dies":
            raise EngineLost(f"request {request_id}: engine {self.number} is dead")
        if self.fate in ("hangs", "is slow"):
            loop = asyncio.get_running_loop()
            self.waiting[request_id] = loop, loop.create_future()
            await self.waiting[request_id][1]
            told = tokens[: self.shop.told]
            return Completion(told, [-1.0] * len(told), "abort", None, self.number)
        self.answered += 1
        return Completion(tokens, [-1.0] * len(tokens), "stop", None, self.number)

    def lost(self):
        return self.why

    def lose(self, why):
        """It fails all it has, as every engine does that is lost."""
        self.why = why
        for request_id, (loop, future) in self.waiting.items():
            error = EngineLost(f"request {request_id}: {why}")
            loop.call_soon_threadsafe(lambda future, error: future.done() or future.set_exception(error), future, error)

    def renewed(self):
        self.shop.making.set()
        assert self.shop.opens.wait(PATIENT_S)
        if self.shop.broken:
            self.shop.broken -= 1
            raise MemoryError("no room")
        return self.shop.make()

    def publish(self, weights, version):
        if self.fate == "dies":
            raise EngineLost("dead before the first bucket")
        taken = []
        for bucket in weights or ():
            taken.append(bucket)
            if self.fate == "dies in a publish":
                raise EngineLost("dead after the first bucket")
        if self.fate == "dies after a publish":
            self.shop.version = version if self.shop.kept else 0
            raise EngineLost("dead after the last bucket")
        self.orders.append(("publish", version, taken))

    def sleep(self):
        if self.fate == "cannot sleep":
            raise MemoryError("no room to sleep in")
        self.orders.append("sleep")

    def wake(self):
        self.orders.append("wake")

    def admit_any_time(self):
        self.orders.append("any time")

    def abort(self, request_id):
        self.aborted.append(request_id)
        if self.fate == "is slow":
            self.waiting[request_id][1].set_result(None)

    def stats(self):
        return {"requests": self.requests, "running": 1, "busy_s": 2.0, "generated_tokens": 10}

    @property
    def in_flight(self):
        return len(self.waiting)

    def close(self):
        self.is_closed = True


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def replacing(shop):
    engine = ReplacingEngine(shop.make())
    yield engine
    shop.opens.set()
    engine.close()


def ask(engine, seed, on_token=None, name=None):
    return engine.generate(Request([1], Sampling(seed=seed), name or str(seed)), on_token)


def begin(engine, seed, on_token=None, name=None):
    return asyncio.create_task(ask(engine, seed, on_token, name))


def gathered(engine, count, **how):
    async def all_of_them():
        return await asyncio.gather(*[ask(engine, i, **how) for i in range(count)], return_exceptions=True)

    return in_time(all_of_them())


async def lost_with(shop, replacing, *seeds):
    shop.fates[0] = "dies"
    shop.opens.clear()
    tasks = [begin(replacing, seed) for seed in seeds]
    await polled(shop.making.is_set)
    return tasks


def hung(shop, number, count):
    return lambda: len(shop.engines) > number and len(shop.engines[number].waiting) >= count


# One renewal


@pytest.mark.parametrize("fate", ["hangs", "dies"])
def test_engine_lost_by_many_requests_of_several_loops_is_replaced_once(shop, replacing, fate, caplog):
    shop.fates[0] = fate
    shop.opens.clear()
    first = shop.engines[0]
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(from_threads, lambda i: ask(replacing, i), 30)
        if fate == "hangs":
            in_time(polled(lambda: len(first.waiting) == 30))
            assert replacing.in_flight == 30
            first.lose("no sign of life")
        in_time(polled(shop.making.is_set))
        shop.opens.set()
        found = asked.result(PATIENT_S)
    assert [completion.token_ids for completion in found] == [[i, i + 1, i + 2] for i in range(30)]
    assert {completion.policy_version for completion in found} == {1}
    assert len(shop.engines) == 2 and replacing.engine is shop.engines[1]
    counts = replacing.stats()
    assert counts["replica_restarts"] == 1 and replacing.in_flight == 0
    asked_of_the_first = counts["requests"] - 30
    assert counts["requests_again"] == asked_of_the_first == (30 if fate == "hangs" else first.requests)
    reason = "no sign of life" if fate == "hangs" else "engine 0 is dead"
    log_is_whole(replacing)
    assert reason in caplog.text and "has the weights; requests sent again" in caplog.text


def test_ordinary_error_is_raised_to_the_caller_unless_the_engine_is_lost(shop, replacing):
    shop.fates[0] = "refuses"
    assert [str(error) for error in gathered(replacing, 2)] == [f"request {i}: not this one" for i in range(2)]
    assert len(shop.engines) == 1 and replacing.stats()["replica_restarts"] == 0
    shop.engines[0].why = "stuck"
    assert gathered(replacing, 1)[0].token_ids == [0, 1, 2]


def test_callers_wait_for_a_new_engine_and_event_loops_continue(shop, replacing):
    """The wait of an order is registered."""
    order = threading.Thread(target=replacing.wake, name="who orders")

    async def main():
        (task,) = await lost_with(shop, replacing, 5)
        late = begin(replacing, 6)
        order.start()
        await passes(100)
        await polled(lambda: "a new rollout engine in the place of a lost one (who orders)" in map(str, longest()))
        (wait,) = [wait for wait in longest() if wait.owner == "who orders"]
        assert wait.kind == "engine" and wait.seconds == pytest.approx(REPLACING_S, abs=60)
        assert not task.done() and not late.done() and replacing.in_flight == 2
        assert replacing.lost() is None, "a new one is on its way"
        with pytest.raises(TimeoutError):  # a caller keeps its own limit
            async with asyncio.timeout(0.01):
                await ask(replacing, 7)
        shop.opens.set()
        return await task, await late

    assert [done.token_ids[0] for done in in_time(main())] == [5, 6]
    order.join(PATIENT_S)
    assert replacing.engine.orders == ["wake"]
    assert replacing.stats()["requests_again"] == 1 and replacing.in_flight == 0  # the late one was asked once
    # Start, four calls on a CPU (load, proof, open, sleep), and the end of the lost one.
    assert START_S + 4 * 2 * HEARTBEAT_S["cpu"] + 7 * CLOSE_S <= REPLACING_S


# Giving up


@pytest.mark.parametrize("count", [1, 5])
def test_gives_up_with_all_reasons_in_order(shop, replacing, count):
    shop.fates = dict.fromkeys(range(10), "dies")
    for i, error in enumerate(gathered(replacing, count)):
        assert type(error) is RolloutError
        assert str(error).startswith(f"request {i}: the rollout engine is lost, no other")
        places = [str(error).index(f"engine {n} is dead") for n in range(RESTARTS + 1)]
        assert places == sorted(places)
    assert len(shop.engines) == 1 + RESTARTS and replacing.stats()["replica_restarts"] == RESTARTS
    with pytest.raises(RolloutError, match="engine 3 is dead"):
        replacing.publish(None, 1)
    assert "given up" in str(gathered(replacing, 1)[0]) and "given up" in replacing.lost()
    assert replacing.in_flight == 0


def test_completed_request_resets_the_count_and_a_failure_to_make_an_engine_counts(shop, replacing):
    for round_ in range(1, 4):  # each loses as many engines as may be lost
        now = len(shop.engines) - 1
        shop.fates = dict.fromkeys(range(now, now + RESTARTS), "dies")
        assert gathered(replacing, 1)[0].finish_reason == "stop"
        assert replacing.stats()["replica_restarts"] == round_ * RESTARTS
    last = 3 * RESTARTS
    shop.fates[last], shop.broken = "dies", RESTARTS - 1
    assert gathered(replacing, 1)[0].finish_reason == "stop"
    shop.fates[last + 1], shop.broken = "dies", RESTARTS
    message = str(gathered(replacing, 1)[0])
    why = f"1. request 0: engine {last + 1} is dead; 2. no new engine could be made: MemoryError: no room; 3. "
    assert why in message and len(shop.engines) == last + 2


def test_new_engine_that_fails_at_once_is_replaced_and_closed(shop, replacing):
    replacing.sleep()
    shop.engines[0].why, shop.fates[1] = "gone", "cannot sleep"
    replacing.wake()
    assert replacing.engine is shop.engines[2] and replacing.stats()["replica_restarts"] == 1
    replacing.sleep()
    shop.engines[2].why = "gone too"
    shop.fates |= dict.fromkeys(range(3, 9), "cannot sleep")
    with pytest.raises(RolloutError, match="given up.*no new engine could be made: MemoryError: no room to sleep in"):
        replacing.wake()
    assert len(shop.engines) > 3 and shop.engines[-1].is_closed


def test_gives_up_at_the_deadline_of_a_replacement(shop, monkeypatch):
    monkeypatch.setattr(replacing_module, "LOOK_S", 0.01)
    monkeypatch.setattr(waits, "PAUSE_S", 0.1)  # a single sleep of 0.2 s would count as a pause, again and again
    shop.fates[0] = "dies"
    shop.opens.clear()
    monkeypatch.setattr(replacing_module, "REPLACING_S", 0.2)
    replacing = ReplacingEngine(shop.make())
    assert "2. no new engine was there after 0.2 s" in str(gathered(replacing, 2)[1])
    shop.opens.set()
    in_time(polled(lambda: len(shop.engines) == 2 and shop.engines[1].is_closed))  # it came too late
    assert replacing.engine is shop.engines[0]
    replacing.close()


def test_request_that_ends_its_engines_fails_alone(shop, replacing):
    """Others are answered in between, so that engines are not given up."""
    shop.poison = 13

    async def main():
        poison = begin(replacing, 13, name="poison")
        answered = 0
        while not poison.done():
            now = await ask(replacing, 2, name=f"other {answered}")
            answered += now.finish_reason == "stop"
            await asyncio.sleep(0)
        with pytest.raises(RolloutError) as raised:
            await poison
        return raised.value, answered

    error, answered = in_time(main())
    assert not isinstance(error, EngineLost) and answered > RESTARTS
    assert str(error).startswith(f"request poison: {RESTARTS + 1} rollout engines were lost while they had it")
    assert "4. request poison: engine 3 cannot read it" in str(error)
    counts = replacing.stats()
    assert counts["replica_restarts"] == RESTARTS + 1 and counts["requests_again"] == RESTARTS
    assert replacing.lost() is None and gathered(replacing, 1)[0].finish_reason == "stop"


# Callers that end meanwhile


def test_abort_during_a_replacement_returns_the_tokens_so_far_with_their_versions(shop, replacing):
    """It began with version 7, got two tokens, then one of version 8; 9 was published while none came."""
    shop.fates[0], shop.told = "hangs", 2
    replacing.publish(None, 7)
    shop.opens.clear()
    tells, told = [], []
    ask = shop.engines[0].generate

    async def noted(request, on_token):
        tells.append(on_token)
        return await ask(request, on_token)

    shop.engines[0].generate = noted

    async def main():
        task, other = begin(replacing, 5, lambda *token: told.append(token)), begin(replacing, 6)
        await polled(hung(shop, 0, 2))
        replacing.publish(None, 8)
        await asyncio.sleep(0)
        tells[0](7, -1.0)
        replacing.publish(None, 9)
        shop.engines[0].lose("no sign of life")
        await polled(shop.making.is_set)
        replacing.abort("never there")
        replacing.abort("5")
        aborted = await task
        assert not other.done() and told == [(5, -1.0), (6, -1.0), (7, -1.0)]
        shop.opens.set()
        return aborted, await other

    aborted, other = in_time(main())
    assert (aborted.token_ids, aborted.finish_reason) == ([5, 6, 7], "abort")
    assert (aborted.policy_version, aborted.token_versions()) == (7, [7, 7, 8])
    assert other.token_ids == [6, 7, 8] and replacing.stats()["requests_again"] == 1


def test_abort_of_a_request_sent_again_returns_all_tokens_received(shop, replacing):
    """The second engine has not come as far as the first had."""
    shop.fates = {0: "hangs", 1: "is slow"}
    replacing.publish(None, 7)
    shop.opens.clear()
    seen = []

    async def main():
        task = begin(replacing, 5, lambda token, _: seen.append(token))
        await polled(hung(shop, 0, 1))
        shop.engines[0].lose("no sign of life")
        await polled(shop.making.is_set)
        shop.told = 2
        shop.opens.set()
        await polled(hung(shop, 1, 1))
        replacing.abort("5")
        return await task

    aborted = in_time(main())
    assert aborted.token_ids == seen == [5, 6, 7] and len(aborted.log_probs) == 3
    assert (aborted.finish_reason, aborted.token_versions()) == ("abort", [7, 7, 7])


@pytest.mark.parametrize("when", ["asked", "renewed"])
def test_callers_that_end_leave_the_others(shop, replacing, when):
    """One is cancelled, one aborted, which is left to the engine until it is lost."""
    shop.fates[0] = "hangs"
    shop.opens.clear()

    async def main():
        cancelled, aborted, other = (begin(replacing, seed) for seed in (5, 6, 7))
        await polled(hung(shop, 0, 3))
        if when == "renewed":
            shop.engines[0].lose("no sign of life")
            await polled(shop.making.is_set)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert replacing.in_flight == 2
        replacing.abort("6")
        assert shop.engines[0].aborted == (["6"] if when == "asked" else []) and not aborted.done()
        shop.engines[0].lose("no sign of life")
        shop.opens.set()
        return await aborted, await other

    aborted, other = in_time(main())
    assert (aborted.finish_reason, aborted.token_ids, other.token_ids) == ("abort", [], [7, 8, 9])
    assert replacing.stats()["requests_again"] == 1 and shop.engines[1].requests == 1


def test_close_during_a_replacement(shop, replacing):
    async def main():
        (task,) = await lost_with(shop, replacing, 5)
        closing = asyncio.create_task(asyncio.to_thread(replacing.close))
        with pytest.raises(RolloutError, match="request 5: the rollout engine has stopped"):
            await task
        shop.opens.set()
        await closing

    in_time(main())
    assert [engine.is_closed for engine in shop.engines] == [True, True]
    assert replacing.lost() == "the rollout engine has stopped"
    with pytest.raises(RolloutError, match="stopped"):
        replacing.publish(None, 1)


# Tokens one by one


@pytest.mark.parametrize("told", [0, 1, 3])
def test_on_token_is_called_once_per_token_and_fails_for_others(shop, replacing, told):
    shop.fates[0] = shop.fates[1] = "dies"
    shop.told = told
    seen = []
    done = gathered(replacing, 1, on_token=lambda token, log_prob: seen.append((token, log_prob)))[0]
    assert seen == [(token, -1.0) for token in done.token_ids] == [(0, -1.0), (1, -1.0), (2, -1.0)]
    shop.fates[2], shop.told = "dies", 2
    shop.tokens = lambda number, seed: [4, 5 + number, 6]
    seen.clear()
    failed = gathered(replacing, 1, on_token=lambda token, _: seen.append(token))[0]
    assert seen == [4, 7] and "samples another token at position 1, which its caller has received" in str(failed)
    assert gathered(replacing, 1)[0].token_ids == [4, 8, 6]  # a request that got no token is not affected


# Orders


def test_orders_are_passed_on_and_a_lost_engine_is_replaced_before(shop, replacing):
    """The next one gets again what the first got once and for all."""
    assert (replacing.context, replacing.vocabulary) == (100, 100)
    assert not replacing.own_weights and not replacing.runs_on
    replacing.admit_any_time()
    replacing.publish(None, 2)
    replacing.sleep()
    assert shop.engines[0].orders == ["any time", ("publish", 2, []), "sleep"]
    shop.engines[0].why = "gone"
    replacing.wake()
    shop.engines[1].why = "gone too"
    replacing.publish([{"w": 1}], 3)
    assert shop.engines[1].orders == ["any time", "sleep", "wake"]
    assert shop.engines[2].orders == ["any time", ("publish", 3, [{"w": 1}])]


class Again:
    """Two buckets, as often as somebody reads them."""

    def __iter__(self):
        return ({"w": i} for i in range(2))


@pytest.mark.parametrize(
    ("fate", "weights"),
    [("dies", iter(Again())), ("dies in a publish", [{"w": 0}, {"w": 1}]), ("dies in a publish", Again())],
)
def test_engine_lost_in_a_publish_is_replaced_by_one_that_gets_all_weights(shop, replacing, fate, weights):
    shop.fates[0] = shop.fates[1] = fate
    replacing.publish(weights, 3)
    assert shop.engines[2].orders == [("publish", 3, [{"w": 0}, {"w": 1}])]
    assert replacing.stats()["replica_restarts"] == 2


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("fate", ["dies in a publish", "dies after a publish"])
def test_an_iterator_of_buckets_is_not_handed_over_twice(shop, replacing, fate, kept):
    """One that was read to its end may have been kept, as in files that are written first."""
    shop.fates[0], shop.kept = fate, kept
    if fate == "dies after a publish" and kept:
        replacing.publish(iter(Again()), 3)
        assert replacing.engine.version == 3 and replacing.engine.orders == []
    else:
        with pytest.raises(RolloutError, match="while it loaded the weights of version 3.*publish again") as raised:
            replacing.publish(iter(Again()), 3)
        assert not isinstance(raised.value, EngineLost)
        replacing.publish([{"w": 1}], 3)
        assert shop.engines[1].orders == [("publish", 3, [{"w": 1}])]
    assert replacing.stats()["replica_restarts"] == 1


# Figures


def test_counts_continue_and_failures_are_reported(shop, replacing):
    before = replacing.stats()
    assert not [name for name in engine_metrics(before, replacing.stats()) if name.startswith("failures")]
    shop.fates[0] = "dies"
    gathered(replacing, 1)
    after = replacing.stats()
    assert after == {
        "requests": 2, "running": 1, "busy_s": 4.0, "generated_tokens": 20, "replica_restarts": 1, "requests_again": 1,
    }  # fmt: skip
    failures = {"failures/replica_restarts": 1, "failures/requests_again": 1}
    assert engine_metrics(before, after).items() >= failures.items()
    assert engine_metrics(before, after)["rollout/generated_tokens"] == 10
    both = replica_metrics([before, after], [after, after])
    assert both.items() >= failures.items() and "failures/replica_restarts" not in replica_metrics([after], [after])
