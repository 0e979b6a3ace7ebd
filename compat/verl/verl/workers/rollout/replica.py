"""`TokenOutput`, one reply of the policy."""

from collections.abc import Iterable
from typing import Any


class TokenOutput(list[int]):
    """The token ids as a list, as loops for verl 0.6 use it, and with the attributes that later ones read."""

    def __init__(
        self,
        token_ids: Iterable[int],
        log_probs: list[float] | None = None,
        routed_experts: Any = None,
        stop_reason: str | None = None,
        num_preempted: int | None = None,
        extra_fields: dict[str, Any] | None = None,
    ):
        super().__init__(token_ids)
        self.log_probs, self.routed_experts = log_probs, routed_experts
        self.stop_reason, self.num_preempted = stop_reason, num_preempted
        self.extra_fields = extra_fields or {}

    @property
    def token_ids(self) -> list[int]:
        return list(self)
