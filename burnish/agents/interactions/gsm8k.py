"""`gsm8k`: a user who says whether the answer is right, and gives hints until it is.

The answer is the number after `####`, or with `method: flexible` in the entry's `config` the last number of the
message. Hints depend on what is wrong and on how many wrong numbers there were. None reveals anything about the ground
truth, not even whether the number was too large, so that the policy cannot search for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish.agents.interactions import BaseInteraction
from burnish.data.chat import Message
from burnish.errors import ConfigError, DataError
from burnish.rewards.scores import gsm8k

PRAISE = "That is right, well done."
NO_FORM = "I cannot find your final answer. Write it on a line of its own as '#### ' and then the number."
NO_NUMBER = "What follows '####' is not a number. Write '#### ' and then the final answer in digits, without words."
NO_NUMBER_AT_ALL = "There is no number in your answer. Give the final answer in digits."
WRONG = "Your answer is not right. Check every step of the calculation."
WRONG_AGAIN = "That is not right either. Read the question again and see what it asks for."
STILL_WRONG = "Still not right. Leave your earlier solution aside and solve the problem again, in another way."
REPEATED = "You gave that answer before, and it is wrong."


@dataclass
class _Attempts:
    ground_truth: str | int | float
    query: str
    wrong: list[str] = field(default_factory=list)
    score: float = 0.0  # of the last message


class Gsm8kInteraction(BaseInteraction):
    def __init__(self, config: Mapping[str, Any]):
        super().__init__(config)
        if unknown := sorted(set(config) - {"method"}):
            raise ConfigError(f"config.{unknown[0]}: the gsm8k interaction has no such key; it knows method")
        self._method: gsm8k.Method = config.get("method", "strict")
        if self._method not in ("strict", "flexible"):
            raise ConfigError(f"config.method={self._method!r}: write strict or flexible")
        self._trajectories: dict[str, _Attempts] = {}

    def check_row(self, ground_truth: Any = None, **kwargs: Any) -> None:
        try:
            gsm8k.check(ground_truth, {})
        except ValueError as error:
            raise DataError(
                f"interaction_kwargs.ground_truth={ground_truth!r:.200}: the gsm8k interaction needs the answer, a "
                "number"
            ) from error

    async def start_interaction(
        self, instance_id: str | None = None, ground_truth: Any = None, query: str = "", **kwargs: Any
    ) -> str:
        self.check_row(ground_truth)
        instance_id = await super().start_interaction(instance_id)
        self._trajectories[instance_id] = _Attempts(ground_truth, query)
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[Message], **kwargs: Any
    ) -> tuple[bool, str, float, dict[str, Any]]:
        if not messages or messages[-1].get("role") != "assistant":
            raise ValueError("the last message is not the policy's")
        attempts, text = self._trajectories[instance_id], str(messages[-1]["content"])
        attempts.score = gsm8k.compute_score(text, attempts.ground_truth, self._method)
        if attempts.score == 1.0:
            return True, PRAISE, 1.0, {}
        return False, self._hint(text, attempts), 0.0, {}

    async def calculate_score(self, instance_id: str, **kwargs: Any) -> float:
        return self._trajectories[instance_id].score

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        self._trajectories.pop(instance_id, None)

    def _hint(self, text: str, attempts: _Attempts) -> str:
        answer = gsm8k.extract_solution(text, self._method)
        if answer is None:
            if self._method == "flexible":
                return NO_NUMBER_AT_ALL
            return NO_NUMBER if "####" in text else NO_FORM
        repeated = any(gsm8k.compute_score(gsm8k.reference(answer, {}), earlier) for earlier in attempts.wrong)
        attempts.wrong.append(answer)
        hint = (WRONG, WRONG_AGAIN, STILL_WRONG)[min(len(attempts.wrong), 3) - 1]
        if hint == WRONG_AGAIN and attempts.query:
            hint = f"{hint}\n\n{attempts.query}"
        return f"{REPEATED} {hint}" if repeated else hint
