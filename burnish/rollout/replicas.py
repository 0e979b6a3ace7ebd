"""The rollout engines of other processes as one: each request goes to one of several replicas, engines with the same
weights, through a `ReplicaPeer`. `Router` chooses:

- All turns of a trajectory go where its first one went, because keys and values of it are there.
- All samples of a prompt go to one replica, which reads the prompt once; when that has more than `SLACK` requests more
  than the one with the fewest, the next samples go to that one.
- Otherwise the replica with the fewest requests. Of equal ones, replica uid % n comes first, and those after it in
  turn: several routers that know nothing of one another yet agree about a prompt.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from burnish.errors import BurnishError, NotAvailable, RolloutError
from burnish.rollout.base import Completion, OnToken, Request, RolloutEngine
from burnish.rollout.engine_loop import is_cancelled

SLACK = 32  # requests that a replica may have more than another before samples of one prompt go apart
ABORT_S = 5.0  # for a replica to hear that a request is not wanted any more
NOT_HERE = "replicas {} when their own worker group is called, not through one of its clients"

log = logging.getLogger(__name__)


class ReplicaPeer(Protocol):
    """A worker of another group, as the controller hands it out."""

    name: str

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The result of the worker's method."""


class ReplicaAnswer(NamedTuple):
    completion: Completion
    load: int  # other requests that the replica has now, whoever asked


class ReplicaLimits(NamedTuple):
    """What a replica's `limits` gives; see RolloutEngine."""

    context: int
    vocabulary: int


@dataclass
class Load:
    """Requests of one replica: those of this router, and those of others when it last answered."""

    own: int = 0
    others: int = 0

    @property
    def total(self) -> int:
        return self.own + self.others


class Router:
    """Chooses among `count` replicas; pure bookkeeping. `order` is (uid, sample, turn), or () for a lone request.
    Prompts are known by namespace and uid: those of validation may have the uids of training's."""

    def __init__(self, count: int, slack: int = SLACK):
        self.loads = [Load() for _ in range(count)]
        self.slack = slack
        # Namespace and uid → its samples, in the order they began → their replicas.
        self._prompts: dict[tuple[str, int], dict[int, int]] = {}

    def begin(self, order: tuple[int, ...], namespace: str = "") -> int:
        """The replica for a request, which counts there from now on."""
        uid, sample = (order[0], order[1]) if order else (0, 0)
        samples = self._prompts.setdefault((namespace, uid), {}) if order else {}
        place = samples.get(sample)
        if place is None:
            count, home = len(self.loads), next(reversed(samples.values()), None)
            place = min(range(count), key=lambda i: (self.loads[i].total, (i - uid) % count))
            if home is not None and self.loads[home].total - self.loads[place].total <= self.slack:
                place = home
            samples[sample] = place
        self.loads[place].own += 1
        return place

    def end(self, place: int, load: int | None = None) -> None:
        """A request has ended; `load` is what its replica reported, if it did."""
        self.loads[place].own -= 1
        if load is not None:
            self.loads[place].others = max(load - self.loads[place].own, 0)

    def forget(self, uids: Iterable[int], namespace: str = "") -> None:
        """All trajectories of these prompts have ended. With none left, what replicas reported is outdated."""
        for uid in uids:
            self._prompts.pop((namespace, uid), None)
        if not self._prompts:
            for load in self.loads:
                load.others = 0

    def __len__(self) -> int:
        return sum(map(len, self._prompts.values()))


class Replicas(RolloutEngine):
    """See the module's docstring. All its requests belong to one event loop at a time."""

    def __init__(self, peers: Sequence[ReplicaPeer], context: int, vocabulary: int):
        self.peers, self.context, self.vocabulary = list(peers), context, vocabulary
        self.router = Router(len(self.peers))
        self._in_flight: dict[str, ReplicaPeer] = {}  # request → who has it
        self._aborts: set[asyncio.Task[None]] = set()
        self._requests = self._aborted = 0

    @classmethod
    async def over(cls, peers: Sequence[ReplicaPeer]) -> "Replicas":
        """Ask the replicas what they can take; those that can take nothing (`NullEngine`) are left out."""
        limits: list[ReplicaLimits] = await asyncio.gather(*[peer.call("limits") for peer in peers])
        there = [(peer, limit) for peer, limit in zip(peers, limits, strict=True) if limit.context]
        context, vocabulary = (min(limit[part] for _, limit in there) for part in range(2))
        return cls([peer for peer, _ in there], context, vocabulary)

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        request_id = request.request_id
        if request.images:
            raise NotAvailable(f"images in a rollout request (request {request_id})")
        if on_token is not None:
            raise NotAvailable(f"tokens one by one from a replica in another process (request {request_id})")
        if request_id in self._in_flight:
            raise RolloutError(f"request {request_id} is already running; request ids must differ")
        if problem := self.prompt_problem(request.prompt_ids):
            raise RolloutError(f"request {request_id}: {problem}")
        namespace, slash, _ = request_id.partition("/")  # of a trajectory's request (`agents/server.py`)
        place, load = self.router.begin(request.order, namespace if slash else ""), None
        peer = self._in_flight[request_id] = self.peers[place]
        self._requests += 1
        try:
            completion, load = await self._ask(peer, request)
            return completion
        finally:
            del self._in_flight[request_id]
            self.router.end(place, load)

    async def _ask(self, peer: ReplicaPeer, request: Request) -> ReplicaAnswer:
        request_id = request.request_id
        try:
            answer: ReplicaAnswer = await peer.call("generate", request)
            return answer
        except asyncio.CancelledError:
            if not is_cancelled():
                raise RolloutError(f"request {request_id}: {peer.name} dropped it") from None
            # Here and not in a task: the loop may stop as soon as all trajectories have ended.
            await self._abort(peer, request_id)
            raise
        except BurnishError:
            raise
        except Exception as error:
            raise RolloutError(f"request {request_id}: {peer.name}: {type(error).__name__}: {error}") from error

    def abort(self, request_id: str) -> None:
        if (peer := self._in_flight.get(request_id)) is not None:
            task = asyncio.get_running_loop().create_task(self._abort(peer, request_id))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    async def _abort(self, peer: ReplicaPeer, request_id: str) -> None:
        self._aborted += 1
        try:
            await asyncio.wait_for(peer.call("abort", request_id), ABORT_S)
        except Exception as error:  # noqa: BLE001 (whoever still wants the request hears of it by the request itself)
            log.debug("request %s could not be aborted on %s: %s", request_id, peer.name, error)

    def forget(self, uids: Iterable[int], namespace: str = "") -> None:
        self.router.forget(uids, namespace)

    def publish(self, weights: Iterable[Mapping[str, Any]] | None, version: int) -> None:
        raise RolloutError(NOT_HERE.format("publish weights"))

    def sleep(self) -> None:
        raise RolloutError(NOT_HERE.format("give memory back"))

    def wake(self) -> None:
        raise RolloutError(NOT_HERE.format("take memory"))

    def stats(self) -> dict[str, float]:
        """What went through here. What was computed is counted where it was: several routers ask one replica."""
        return {"requests": self._requests, "aborted": self._aborted, "in_flight": len(self._in_flight)}

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)


class NullEngine(RolloutEngine):
    """Where another process of its group has the engine: weights, which all of them bring together, are let go here.
    Nobody asks it for tokens: its `context` is 0."""

    runs_on = True
    context = vocabulary = in_flight = 0

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        raise RolloutError(f"request {request.request_id}: the rollout engine is in another process of its group")

    def publish(self, weights: Iterable[Mapping[str, Any]] | None, version: int) -> None:
        for bucket in weights or ():
            del bucket

    def sleep(self) -> None: ...

    def wake(self) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def stats(self) -> dict[str, float]:
        return {}
