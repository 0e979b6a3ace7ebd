"""The base of reward managers that compute their scores themselves."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from burnish.protocol import DataProto

RawRewardFn = Callable[..., Any]


class OwnScores:
    """A subclass that defines `__call__` computes its own scores: nothing is scored before it is called. A reward that
    it puts on a token which the policy did not sample, such as the end of a tool's output, goes to the policy's last
    token of that row."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in vars(cls):
            call = vars(cls)["__call__"]

            @functools.wraps(call)
            def __call__(self: Any, data: DataProto, *args: Any, **named: Any) -> Any:
                answer = call(self, data, *args, **named)
                if isinstance(answer, torch.Tensor):
                    return on_policy_tokens(answer, data)
                return {**answer, "reward_tensor": on_policy_tokens(answer["reward_tensor"], data)}

            for name, value in {"takes_results": False, "spec": None, "__call__": __call__}.items():
                setattr(cls, name, value)


def on_policy_tokens(rewards: torch.Tensor, data: DataProto) -> torch.Tensor:
    """(B, R)"""
    mask = data.batch["response_mask"].bool()
    outside = rewards.masked_fill(mask, 0).sum(-1, keepdim=True)  # (B, 1)
    last = (mask * torch.arange(1, mask.shape[1] + 1)).argmax(-1, keepdim=True)
    return rewards.masked_fill(~mask, 0).scatter_add(-1, last, outside * mask.any(-1, keepdim=True))


class AbstractRewardManager(OwnScores, ABC):
    """`compute_score` scores one response with the configured function, or with the scorer of the data source."""

    @abstractmethod
    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: RawRewardFn | None,
        reward_fn_key: str = "data_source",
        **kwargs: Any,
    ): ...

    @abstractmethod
    def __call__(self, data: DataProto, return_dict: bool = False) -> torch.Tensor | dict[str, Any]:
        """The rewards (B, R); with `return_dict` {"reward_tensor": …, "reward_extra_info": …}."""

    def _extract_reward_from_rm_scores(
        self, data: DataProto, return_dict: bool = False
    ) -> torch.Tensor | dict[str, Any] | None:
        """What a manager returns for scores that the batch brings; None where it brings none."""
        if data.batch is None or "rm_scores" not in data.batch:
            return None
        scores: torch.Tensor = data.batch["rm_scores"]
        return {"reward_tensor": scores, "reward_extra_info": {}} if return_dict else scores
