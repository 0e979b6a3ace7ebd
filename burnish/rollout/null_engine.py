"""What replaces the rollout engine in a process that has none, because one engine spans the devices of several.

The processes of such a span bring the weights together, and the first of them hands them to the engine. In the others
this one takes them and lets them go. Nobody asks it for tokens: its `context` is 0, and `Replicas.over` leaves out
those.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from burnish.errors import RolloutError
from burnish.rollout.base import Completion, OnToken, Request, RolloutEngine


class NullEngine(RolloutEngine):
    """No engine is here."""

    runs_on = True
    context = vocabulary = 0

    async def generate(self, request: Request, on_token: OnToken | None = None) -> Completion:
        raise RolloutError(f"request {request.request_id}: the rollout engine is in another process of its group")

    def publish(self, weights: Iterable[Mapping[str, Any]] | None, version: int) -> None:
        for bucket in weights or ():
            del bucket  # it is there because all processes took part in bringing it together

    def sleep(self) -> None:
        pass

    def wake(self) -> None:
        pass

    def abort(self, request_id: str) -> None:
        pass

    def stats(self) -> dict[str, float]:
        return {}

    @property
    def in_flight(self) -> int:
        return 0
