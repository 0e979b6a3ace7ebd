"""Programs, test by test."""

import asyncio
from typing import Any

from burnish.loop_thread import run_to_end
from burnish.rewards.scores import code
from verl.utils.reward_score.sandbox_fusion import limits


def check_correctness(
    sandbox_fusion_url: str | None,
    in_outs: dict[str, Any],
    generation: str,
    timeout: float = 10,
    memory_limit_mb: int | None = None,
    language: str = "python",
    concurrent_semaphore: Any = None,
) -> tuple[list[bool], list[dict[str, Any]]]:
    """For each test whether it is passed, and what happened; one that ends in an error is not passed."""
    sandbox = {**limits(sandbox_fusion_url, memory_limit_mb), "timeout": float(timeout)}
    tests = [
        {**in_outs, "inputs": [given], "outputs": [expected]}
        for given, expected in zip(in_outs["inputs"], in_outs["outputs"], strict=True)
    ]

    async def all_of_them() -> list[dict[str, Any]]:
        return await asyncio.gather(*(code.compute_score(generation, test, sandbox=sandbox) for test in tests))

    results = run_to_end(all_of_them())
    return [bool(result["acc"]) for result in results], results
