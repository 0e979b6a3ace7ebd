"""What a loop sees of the rollout engine: one trajectory's requests, counted and seeded.

Each call is a turn. Its seed comes from (seed, namespace, uid, sample, turn), so a trajectory's tokens do not depend on
what else runs, and its place in the engine's queue is (uid, sample, turn).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from burnish.agents.output import as_ids
from burnish.rollout.base import Completion, Request, RolloutEngine, Sampling, request_seed
from burnish.waits import owned_by, waiting


class ServerManager:
    """Generates for one trajectory and keeps the engine's record of it in `completions`, by turn.

    Made in the trajectory's own task: what that waits for from then on is shown as the trajectory's. `deadline` is when
    the trajectory must be done, as a moment of time.monotonic(); None: it may take as long as it takes.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        sampling: Sampling,
        *,
        namespace: str,
        seed: int,
        uid: int,
        sample: int,
        deadline: float | None = None,
    ):
        self.namespace = namespace
        self.uid = uid
        self.sample = sample
        self.turn = 0
        self._engine = engine
        self._sampling = sampling
        self._seed = seed
        self._deadline = deadline
        self._record: dict[int, Completion] = {}
        owned_by(f"uid {uid}, sample {sample}")

    async def generate(
        self,
        request_id: str = "",
        *,
        prompt_ids: Any,
        sampling_params: Mapping[str, Any] | None = None,
        images: Sequence[Any] | None = None,
    ) -> Completion:
        """Sample a continuation of `prompt_ids`, a list or a tensor.

        What `sampling_params` leaves out is as configured.
        `request_id` is free text for the engine's messages; requests are identified by trajectory and turn.
        """
        turn, self.turn = self.turn, self.turn + 1
        sampling = Sampling.from_params({**self._sampling.to_params(), **(sampling_params or {})})
        if "seed" not in (sampling_params or {}):
            seed = request_seed(self._seed, self.namespace, self.uid, self.sample, turn)
            sampling = replace(sampling, seed=seed)
        identity = f"{self.namespace}/{self.uid}.{self.sample}.{turn}" + (f"/{request_id}" if request_id else "")
        ids, order, who = as_ids(prompt_ids), (self.uid, self.sample, turn), f"uid {self.uid}, sample {self.sample}"
        seconds = None if self._deadline is None else self._deadline - time.monotonic()
        with waiting("engine", f"{who}, turn {turn}", f"request {identity}", seconds):
            completion = await self._engine.generate(Request(ids, sampling, identity, order, images or ()))
        self._record[turn] = completion
        return completion

    @property
    def completions(self) -> list[Completion]:
        """Everything the engine sampled for this trajectory, in the order it was asked."""
        return [self._record[turn] for turn in sorted(self._record)]
