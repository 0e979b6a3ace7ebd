"""Scores many solutions in the real sandbox at once. Used by the tests of the code scorer; no tests here."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from burnish.rewards.scores.code import compute_score
from burnish.sandbox.local import LocalSandbox

SANDBOX = {"timeout": 2.0, "memory_limit_mb": 256, "max_concurrent": 6}


def need_sandbox() -> None:
    """Skip, with the reason, where this machine permits no isolation."""
    sandbox = LocalSandbox()
    reason = asyncio.run(sandbox.why_not())
    sandbox.close()
    if reason is not None:
        pytest.skip(reason)


def score_all(solutions: Mapping[str, str], ground_truth: Any, **options: Any) -> dict[str, dict[str, Any]]:
    """The results by name."""
    settings = {"sandbox": SANDBOX, **options}

    async def run() -> list[dict[str, Any]]:
        texts = [f"Here it is.\n```python\n{source}\n```" for source in solutions.values()]
        return await asyncio.gather(*(compute_score(text, ground_truth, {}, **settings) for text in texts))

    return dict(zip(solutions, asyncio.run(run()), strict=True))


def score(solution: str, ground_truth: Any, **options: Any) -> dict[str, Any]:
    return score_all({"it": solution}, ground_truth, **options)["it"]
