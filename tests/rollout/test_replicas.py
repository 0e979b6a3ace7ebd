"""Several engines as one: who samples what, how that is forgotten, and what a caller hears when it fails."""

import asyncio
import itertools

import pytest

from burnish.errors import NotAvailable, RolloutError, WorkerError
from burnish.rollout.base import Completion, Request, RolloutEngine, Sampling
from burnish.rollout.replicas import ReplicaAnswer, ReplicaLimits, Replicas, Router
from tests.rollout.asking import in_time, start

SAMPLING = Sampling(max_tokens=3)


# Who samples what


def test_prompts_in_turn_go_to_replicas_in_turn_and_all_samples_of_one_together():
    router = Router(4)
    assert [{router.begin((uid, sample, 0)) for sample in range(8)} for uid in range(8)] == [{0}, {1}, {2}, {3}] * 2
    assert [load.own for load in router.loads] == [16] * 4
    for uid, count in itertools.product(range(7), (1, 2, 5)):  # also routers that know nothing of one another
        assert {Router(count).begin((uid, 0, 0)) for _ in range(3)} == {uid % count}
    shares = [Router(4) for _ in range(2)]  # each with half of a batch
    places = [shares[uid // 8].begin((uid, 0, 0)) for uid in range(16)]
    assert [places.count(place) for place in range(4)] == [4] * 4


def test_a_prompt_that_would_overload_its_replica_moves_to_the_least_loaded():
    router = Router(2, slack=4)
    places = [router.begin((0, sample, 0)) for sample in range(12)]
    assert places == [0] * 5 + [1] * 7  # and stays there, as long as that one is not overloaded
    assert [router.begin((0, sample, 1)) for sample in (0, 11)] == [0, 1]


def test_turns_stay_where_the_trajectory_is_however_busy_that_is():
    router = Router(2, slack=0)
    home = router.begin((7, 0, 0))
    router.end(home)
    for uid in range(20):
        router.loads[home].own += 1
        assert router.begin((7, 0, uid + 1)) == home
        router.end(home)
    assert router.begin((7, 1, 0)) != home  # another sample of the same prompt


def test_the_least_loaded_counts_what_others_ask_and_own_requests_once():
    router = Router(3)
    for uid in range(3):
        assert router.begin((uid, 0, 0)) == uid
    router.end(0, load=10)
    router.end(1, load=4)
    assert [load.total for load in router.loads] == [10, 4, 1]
    assert router.begin((30, 0, 0)) == 2
    router.end(2, load=99)
    assert router.begin((31, 0, 0)) == 1
    router = Router(2)
    for sample in range(5):
        router.begin((0, sample, 0))
    for load, total in ((4, 4), (9, 3 + 6), (None, 2 + 6)):  # our own four; six of others; a failure tells nothing
        router.end(0, load)
        assert router.loads[0].total == total


def test_what_has_ended_is_forgotten():
    router = Router(2)
    for uid, sample in itertools.product(range(50), range(4)):
        router.end(router.begin((uid, sample, 0)), load=3)
    assert len(router) == 200
    router.forget(range(25))
    assert len(router) == 100 and [load.others for load in router.loads] == [3, 3]
    router.forget(range(50))
    assert len(router) == 0 and not router._prompts and [load.total for load in router.loads] == [0, 0]
    for _ in range(100):
        router.end(router.begin(()))  # belongs to no trajectory
    assert len(router) == 0 and not router._prompts


def test_prompts_of_training_and_of_validation_have_uids_of_their_own():
    router = Router(2, slack=0)
    home = router.begin((0, 0, 0), "train")
    router.loads[home].own += 5
    assert router.begin((0, 0, 0), "val") != home
    router.forget([0], "val")
    assert len(router) == 1 and router.begin((0, 0, 1), "train") == home, "training's trajectory has lost its place"
    router.forget([0], "train")
    assert len(router) == 0


# What goes through


class FakePeer:
    """Answers with its own name's number; `fails` or waits where told to."""

    def __init__(self, number=0, context=50, fails=None, waits=False):
        self.name, self.number, self.context, self.fails = f"replica {number}", number, context, fails
        self.calls, self.aborted, self.released = [], [], asyncio.Event()
        if not waits:
            self.released.set()

    async def call(self, method, *args, **kwargs):
        if method == "limits":
            return ReplicaLimits(self.context, 300)
        if method == "abort":
            self.aborted.append(args[0])
            return None
        assert method == "generate" and not kwargs
        self.calls.append(args)
        await self.released.wait()
        if self.fails:
            raise self.fails
        return ReplicaAnswer(Completion([self.number], [-0.5], "stop", None, 3), 0)


def over(*peers):
    return Replicas(peers, 50, 300)


def test_a_request_arrives_as_it_is_and_so_does_the_answer():
    async def main():
        peers = [FakePeer(0), FakePeer(1, context=40)]
        replicas = await Replicas.over(peers)
        assert (replicas.context, replicas.vocabulary) == (40, 300) and isinstance(replicas, RolloutEngine)
        done = await replicas.generate(Request([7, 8], SAMPLING, "train/1.0.0", (1, 0, 0)))
        assert peers[1].calls == [(Request([7, 8], SAMPLING, "train/1.0.0", (1, 0, 0)),)]
        assert done == Completion([1], [-0.5], "stop", None, 3)
        assert replicas.stats() == {"requests": 1, "aborted": 0, "in_flight": 0}

    in_time(main())


@pytest.mark.parametrize(
    ("prompt", "images", "on_token", "error", "message"),
    [
        ([], (), None, RolloutError, "request a: .*empty"),
        ([5] * 50, (), None, RolloutError, "request a: .*50 tokens"),
        ([300], (), None, RolloutError, "request a: .*token id 300"),
        ([5], (), print, NotAvailable, "one by one"),
        ([5], ["cat"], None, NotAvailable, "images"),
    ],
)
def test_what_no_replica_could_take_is_refused_here(prompt, images, on_token, error, message):
    peer = FakePeer()
    with pytest.raises(error, match=message):
        in_time(over(peer).generate(Request(prompt, SAMPLING, "a", images=images), on_token))
    assert not peer.calls


class Died(WorkerError):
    pass


@pytest.mark.parametrize(
    "fails,kind,said",
    [
        (Died("rank 1 is gone"), Died, "^rank 1 is gone$"),
        (RolloutError("request a: the engine sleeps"), RolloutError, "^request a: the engine sleeps$"),
        (KeyError("odd"), RolloutError, "request a: replica 0: KeyError: 'odd'"),
        (asyncio.CancelledError(), RolloutError, "request a: replica 0 dropped it"),
    ],
)
def test_what_a_replica_raises_rises_at_the_caller(fails, kind, said):
    replicas = over(FakePeer(fails=fails))
    with pytest.raises(kind, match=said):
        in_time(replicas.generate(Request([5], SAMPLING, "a", (0, 0, 0))))
    assert replicas.stats()["in_flight"] == 0 and replicas.router.loads[0].total == 0


def test_a_caller_that_gives_up_ends_the_request_on_its_replica():
    async def main():
        peers = [FakePeer(0, waits=True), FakePeer(1, waits=True)]
        replicas = over(*peers)
        task = start(replicas, "a", order=(1, 0, 0))
        await asyncio.sleep(0)
        with pytest.raises(RolloutError, match="request a is already running"):
            await start(replicas, "a")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # after which the loop may end
        assert task.cancelled() and (peers[0].aborted, peers[1].aborted) == ([], ["a"])
        assert replicas.router.loads[1].total == 0 and replicas.stats()["in_flight"] == 0

    in_time(main())


def test_giving_up_does_not_wait_for_a_replica_that_hangs(monkeypatch):
    class Hangs(FakePeer):
        async def call(self, method, *args, **kwargs):
            await asyncio.Event().wait()

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(start(over(Hangs()), "a"), 0.05)

    monkeypatch.setattr("burnish.rollout.replicas.ABORT_S", 0.05)
    in_time(main())


def test_abort_is_passed_on_and_the_rest_is_the_groups_business():
    async def main():
        peer = FakePeer(waits=True)
        replicas = over(peer)
        task = start(replicas, "a")
        await asyncio.sleep(0)
        replicas.abort("never there")
        replicas.abort("a")
        while not peer.aborted:
            await asyncio.sleep(0)
        peer.released.set()
        await task
        assert peer.aborted == ["a"] and replicas.stats()["aborted"] == 1
        for call in (replicas.sleep, replicas.wake, lambda: replicas.publish(None, 1)):
            with pytest.raises(RolloutError, match="their own worker group"):
                call()

    in_time(main())
