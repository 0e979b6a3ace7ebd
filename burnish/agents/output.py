"""What an agent loop hands back, checked as it is made so that the error points into the loop.

Consumes ids, masks and log-probs as lists, numpy arrays or tensors; produces plain lists of equal length.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from burnish.errors import AgentError


@dataclass
class AgentLoopOutput:
    """One trajectory: the prompt, and everything after it with a mask that says which tokens the policy sampled.

    `response_logprobs` are read where the mask is 1; None takes them from the engine's record, where every sampled
    token is in the response. `turn_rewards` has one number per turn, a turn being an unbroken run of sampled tokens;
    `reward_score` goes to the last one. Where either is given nothing else scores the response, unless `add_score` asks
    for the configured score besides the turn rewards.
    `extra_fields["new_prompts"]` is a list of rows that the loop proposes to train on later (`data.augment.enable`).
    """

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]  # 1 = sampled by the policy
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    turn_rewards: list[float] | None = None
    add_score: bool = False
    num_turns: int = 2
    metrics: dict[str, Any] = field(default_factory=dict)
    extra_fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompt_ids = as_ids(self.prompt_ids, "prompt_ids")
        self.response_ids = as_ids(self.response_ids, "response_ids")
        self.response_mask = as_ids(self.response_mask, "response_mask")
        if not self.prompt_ids:
            raise AgentError("prompt_ids is empty; a trajectory starts with the tokens the policy was prompted with")
        _same_length("response_mask", self.response_mask, self.response_ids)
        if not set(self.response_mask) <= {0, 1}:
            wrong = next(i for i, m in enumerate(self.response_mask) if m not in (0, 1))
            raise AgentError(f"response_mask[{wrong}] is {self.response_mask[wrong]}; it must be 0 or 1")
        if self.response_logprobs is not None:
            self.response_logprobs = self._checked_log_probs(_as_list(self.response_logprobs, "response_logprobs"))
        if self.reward_score is not None:
            self.reward_score = _number("reward_score", self.reward_score)
        if self.turn_rewards is not None:
            values = _as_list(self.turn_rewards, "turn_rewards")
            self.turn_rewards = [_number(f"turn_rewards[{i}]", value) for i, value in enumerate(values)]
            turns = len(self.turn_ends())
            if len(self.turn_rewards) != turns:
                raise AgentError(
                    f"turn_rewards has {len(self.turn_rewards)} values, but response_mask marks {turns} turns"
                )

    def _checked_log_probs(self, values: list[Any]) -> list[float]:
        _same_length("response_logprobs", values, self.response_ids)
        if set(map(type, values)) <= {float} and math.isfinite(sum(values)) and all(self.response_mask):
            return values  # all is right, and known without looking at one after the other
        for i, (value, sampled) in enumerate(zip(values, self.response_mask, strict=True)):
            if sampled and (not isinstance(value, int | float) or not math.isfinite(value)):
                raise AgentError(
                    f"response_logprobs[{i}] is {value}; a token with mask 1 needs the log-prob it was sampled with"
                )
        return [float(value) if sampled else 0.0 for value, sampled in zip(values, self.response_mask, strict=True)]

    @property
    def policy_ids(self) -> list[int]:
        return list(itertools.compress(self.response_ids, self.response_mask))

    def policy_turns(self) -> list[list[int]]:
        turns = itertools.groupby(zip(self.response_ids, self.response_mask, strict=True), key=lambda pair: pair[1])
        return [[token for token, _ in turn] for sampled, turn in turns if sampled]

    def turn_ends(self) -> list[int]:
        """Position in the response of the last sampled token of each turn."""
        return _turn_ends(self.response_mask)

    def cut(self, max_length: int) -> "AgentLoopOutput":
        """At most `max_length` response tokens. Rewards of turns that are cut off go with them."""
        if len(self.response_ids) <= max_length:
            return self
        mask = self.response_mask[:max_length]
        turns = len(_turn_ends(mask))
        return replace(
            self,
            response_ids=self.response_ids[:max_length],
            response_mask=mask,
            response_logprobs=None if self.response_logprobs is None else self.response_logprobs[:max_length],
            turn_rewards=None if self.turn_rewards is None else self.turn_rewards[:turns],
        )


def _turn_ends(mask: list[int]) -> list[int]:
    return [i for i, (sampled, after) in enumerate(zip(mask, [*mask[1:], 0], strict=True)) if sampled and not after]


def as_ids(value: Any, name: str = "prompt_ids") -> list[int]:
    """Token ids as a list: from a list, a tensor or array of shape (n,) or (1, n), or a tokenizer's encoding."""
    if isinstance(value, Mapping) or hasattr(value, "input_ids"):
        value = value["input_ids"]
    values = _as_list(value, name)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if set(map(type, values)) <= {int}:
        return list(values)
    for i, item in enumerate(values):
        if not isinstance(item, int):  # bool is an int
            raise AgentError(f"{name}[{i}] is {item!r}; expected whole numbers, as a list or a tensor")
    return [int(item) for item in values]


def _as_list(value: Any, name: str) -> list[Any]:
    if hasattr(value, "tolist"):  # numpy and torch
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise AgentError(f"{name} is a {type(value).__name__}; expected a list or a tensor")
    if set(map(type, value)) <= {int, float}:
        return list(value)
    return [item.tolist() if hasattr(item, "tolist") else item for item in value]


def _same_length(name: str, values: list[Any], ids: list[int]) -> None:
    if len(values) != len(ids):
        raise AgentError(f"{name} has {len(values)} entries and response_ids has {len(ids)}; they must line up")


def _number(name: str, value: Any) -> float:
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise AgentError(f"{name} is {value!r}; expected a finite number")
    return float(value)
