"""What the engine sends to the process that hosts its program (`HostedRequest`) and gets for it, over burnish/child."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HostedRequest:
    """One request. `sampling` are the program's own arguments, without those that change on the way."""

    prompt_ids: list[int]
    sampling: dict[str, Any]
    seed: int
    limit: int
    streams: bool  # tokens as they come, or all at the end


@dataclass(frozen=True)
class HostedTokens:
    """Tokens of one request, or why it failed."""

    token_ids: list[int]
    log_probs: list[float]
    version: int
    end: str | None = None  # why no more come; None: more may come
    problem: str | None = None  # it failed
