"""What a loop sees of the rollout engine: one trajectory's requests, counted and seeded.

Each call is a turn. Its seed comes from (seed, namespace, uid, sample, turn), so a trajectory's tokens do not depend on
what runs beside it, and its place in the engine's queue is (uid, sample, turn).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from burnish.agents.output import as_ids
from burnish.rollout.base import Completion, RolloutEngine, Sampling, request_seed


class ServerManager:
    """Generates for one trajectory and keeps the engine's record of it in `completions`, by turn."""

    def __init__(self, engine: RolloutEngine, sampling: Sampling, *, namespace: str, seed: int, uid: int, sample: int):
        self.uid = uid
        self.sample = sample
        self.turn = 0
        self._engine = engine
        self._sampling = sampling
        self._namespace = namespace
        self._seed = seed
        self._record: dict[int, Completion] = {}

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
        `request_id` is free text for the engine's messages; requests are told apart by trajectory and turn.
        """
        turn, self.turn = self.turn, self.turn + 1
        sampling = Sampling.from_params({**self._sampling.to_params(), **(sampling_params or {})})
        if "seed" not in (sampling_params or {}):
            seed = request_seed(self._seed, self._namespace, self.uid, self.sample, turn)
            sampling = replace(sampling, seed=seed)
        identity = f"{self._namespace}/{self.uid}.{self.sample}.{turn}" + (f"/{request_id}" if request_id else "")
        completion = await self._engine.generate(
            as_ids(prompt_ids), sampling, request_id=identity, images=images, order=(self.uid, self.sample, turn)
        )
        self._record[turn] = completion
        return completion

    @property
    def completions(self) -> list[Completion]:
        """Everything the engine sampled for this trajectory, in the order it was asked."""
        return [self._record[turn] for turn in sorted(self._record)]
