"""What a loop sees of the rollout engine: one trajectory's requests, counted and seeded, and its tokens.

Each call is a turn. Its seed comes from (seed, namespace, uid, sample, turn), so a trajectory's tokens do not depend on
what else runs, and its place in the engine's queue is (uid, sample, turn).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from burnish.agents.output import AgentLoopOutput, as_ids
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
        self.namespace, self.uid, self.sample, self.turn = namespace, uid, sample, 0
        self._engine, self._sampling, self._seed, self._deadline = engine, sampling, seed, deadline
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
        """Sample a continuation of `prompt_ids`, a list or tensor. What `sampling_params` leaves out is as configured;
        `request_id` is free text for the engine's messages, since requests are identified by trajectory and turn."""
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


class Transcript:
    """One trajectory's tokens as they come: sampled ones with mask 1 and their log-probs, observed ones with mask 0.

    The next turn's prompt is the transcript itself, so nothing is rendered or tokenised again, and the engine finds
    what it has computed before. The response, observations included, has at most `limit` tokens. An observation that
    would leave no room for the policy to continue is not taken: the trajectory ends there, as truncated.
    """

    def __init__(self, server: ServerManager, prompt_ids: list[int], limit: int):
        self.prompt_ids = prompt_ids
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.log_probs: list[float] = []
        self.turns: list[Completion] = []
        self.is_full = False  # an observation did not fit
        self._server = server
        self._limit = limit

    @property
    def room(self) -> int:
        return self._limit - len(self.ids)

    async def sample(self, sampling_params: Mapping[str, Any], **changes: Any) -> Completion:
        params = {**sampling_params, **changes}
        params["max_tokens"] = min(params.get("max_tokens") or self.room, self.room)
        completion = await self._server.generate(prompt_ids=self.prompt_ids + self.ids, sampling_params=params)
        self.ids += completion.token_ids
        self.mask += [1] * len(completion.token_ids)
        self.log_probs += completion.log_probs
        self.turns.append(completion)
        return completion

    def observe(self, ids: list[int]) -> bool:
        """Append what the policy reads; False where it does not fit, and then the trajectory is at its end."""
        self.is_full = len(ids) >= self.room
        if not self.is_full:
            self.ids += ids
            self.mask += [0] * len(ids)
            self.log_probs += [0.0] * len(ids)
        return not self.is_full

    def output(self, **fields: Any) -> AgentLoopOutput:
        """What the loop hands back; `fields` are those of AgentLoopOutput besides the tokens."""
        extra = dict(fields.pop("extra_fields", {}))
        if self.is_full:
            extra["finish_reason"] = "length"
        return AgentLoopOutput(
            prompt_ids=self.prompt_ids,
            response_ids=self.ids,
            response_mask=self.mask,
            response_logprobs=self.log_probs,
            extra_fields=extra,
            **fields,
        )
