"""Programs: (score, what happened), run on a SandboxFusion server, or in burnish's sandbox where no server is named."""

from typing import Any

from burnish.loop_thread import run_to_end
from burnish.rewards.scores import code


def compute_score(
    sandbox_fusion_url: str | None,
    concurrent_semaphore: Any,
    memory_limit_mb: int | None,
    completion: str,
    test_cases: Any,
    continuous: bool = False,
    timeout: float = 10,
) -> tuple[float, list[dict[str, Any]]]:
    sandbox = {**limits(sandbox_fusion_url, memory_limit_mb), "timeout": float(timeout)}
    result = run_to_end(code.compute_score(completion, test_cases, continuous=continuous, sandbox=sandbox))
    return result.pop("score"), [result]


def limits(url: str | None, memory_limit_mb: int | None) -> dict[str, Any]:
    """The fields of `reward_model.sandbox` that these stand for."""
    given = {"url": url, "memory_limit_mb": memory_limit_mb}
    return {name: value for name, value in given.items() if value is not None}
