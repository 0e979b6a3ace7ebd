"""The contract between the trainer and a reward manager, and the adapter that gives it to users' own classes."""

from collections.abc import Mapping
from typing import Any, Protocol

from burnish.protocol import DataProto
from burnish.rewards.contract import FunctionSpec, ScoreResult
from burnish.rewards.scoring import Scoring


class RewardManager(Protocol):
    """What the trainer uses of a manager."""

    takes_results: bool  # it has `score`, and places the results that rows carry

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def spec(self) -> FunctionSpec | None:
        """The function by which each sample can be scored as its trajectory finishes; None: scored all together."""

    def __call__(self, data: DataProto, return_dict: bool = False) -> Any:
        """The rewards (B, R); with `return_dict` {"reward_tensor": …, "reward_extra_info": …}."""

    def score(self, data: DataProto) -> list[ScoreResult]:
        """One result per row; only where `takes_results`."""

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        """What keeps a row from being scored, naming the field, or None; asked when a dataset is loaded."""

    def close(self) -> None:
        """End the processes that score."""


class UserManager:
    """A user's own manager: it has to be callable, and may have the rest."""

    def __init__(self, manager: Any):
        self.manager, self.name = manager, type(manager).__name__
        self.takes_results = bool(getattr(manager, "takes_results", False))
        self._check_row, self._close = getattr(manager, "check_row", None), getattr(manager, "close", None)
        self.spec = spec_of(getattr(manager, "compute_score", None)) if self.takes_results else None

    def __call__(self, data: DataProto, return_dict: bool = False) -> Any:
        return self.manager(data, return_dict=return_dict)

    def score(self, data: DataProto) -> list[ScoreResult]:
        results: list[ScoreResult] = self.manager.score(data)
        return results

    def check_row(self, row: Mapping[str, Any]) -> str | None:
        return self._check_row(row) if self._check_row else None

    def close(self) -> None:
        if self._close:
            self._close()


def adapt_manager(manager: Any) -> RewardManager:
    """The manager itself where it is one of burnish's, else behind the adapter."""
    from burnish.rewards.managers.naive import NaiveRewardManager

    adapted: RewardManager = manager if isinstance(manager, NaiveRewardManager | UserManager) else UserManager(manager)
    return adapted


def spec_of(function: Any) -> FunctionSpec | None:
    """The spec of a function that scores single samples."""
    return None if isinstance(function, Scoring) and not function.one_by_one else getattr(function, "spec", None)
