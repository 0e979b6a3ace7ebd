"""One trajectory's tokens as they come: sampled ones with mask 1 and their log-probs, observed ones with mask 0.

Whatever was sampled stays as the engine gave it. The next turn's prompt is the transcript itself, so nothing is ever
rendered or tokenised again, and the engine finds what it has computed before.

The response, observations included, has at most `limit` tokens. An observation that would leave no room for the policy
to continue is not taken: the trajectory ends there, as truncated.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from burnish.agents.output import AgentLoopOutput
from burnish.rollout.base import Completion

if TYPE_CHECKING:
    from burnish.agents.server import ServerManager


class Transcript:
    """The ids, mask and log-probs of one trajectory."""

    def __init__(self, server: "ServerManager", prompt_ids: list[int], limit: int):
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
        """Tokens that the response may still grow by."""
        return self._limit - len(self.ids)

    async def sample(self, sampling_params: Mapping[str, Any], **changes: Any) -> Completion:
        """The policy's next turn, which is appended."""
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

    @property
    def is_truncated(self) -> bool:
        """Whether it ended because there was no room, in the response or in the last turn."""
        return self.is_full or bool(self.turns and self.turns[-1].finish_reason == "length")

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
