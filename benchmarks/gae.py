"""GAE without a loop compared with the loops it replaces, on a CPU: `python benchmarks/gae.py`, `--help` for the sizes.

Three ways to the same advantages and returns, over one random batch whose responses differ in length and have
observations inside: burnish's estimator, a loop over tokens that takes all rows at once, and the recursion as it is
written in the paper, row by row and token by token on Python numbers. The last is timed on some of the rows
(`--plain-rows`), and its time multiplied by how many times as many policy tokens the batch has. Prints the fastest of
the runs, the ratios and how far the results differ, and one JSON line to keep; fails where the results do not agree.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch

from burnish.algorithms.advantages.gae import gae
from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.masked import masked_whiten, zero_outside
from burnish.config.algorithm import AlgorithmConfig

Result: TypeAlias = tuple[torch.Tensor, torch.Tensor]
TOLERANCE = 1e-3  # float32, added up over thousands of tokens in another order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024, help="responses in the batch")
    parser.add_argument("--width", type=int, default=4096, help="tokens of the longest response")
    parser.add_argument("--holes", type=float, default=0.1, help="share of a response that is observations")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each; the fastest counts")
    parser.add_argument("--plain-rows", type=int, default=128, help="rows for the loop over rows and tokens")
    options = parser.parse_args()

    batch = random_batch(options.rows, options.width, options.holes)
    few = first_rows(batch, min(options.plain_rows, options.rows))
    policy_tokens = int(batch.response_mask.sum())
    scale = policy_tokens / int(few.response_mask.sum())
    ways = {
        "burnish": lambda: gae(batch),
        "loop over tokens": lambda: over_tokens(batch),
        "loop over rows and tokens": lambda: over_rows_and_tokens(few),
    }
    seconds, results = fastest(options.repeat, ways)
    seconds["loop over rows and tokens"] *= scale
    away = {
        "loop over tokens": difference(results["burnish"], results["loop over tokens"]),
        "loop over rows and tokens": difference(gae(few), results["loop over rows and tokens"]),
    }
    device = f"CPU, {torch.get_num_threads()} threads"
    print(f"GAE over ({options.rows}, {options.width}), {policy_tokens} policy tokens, on {device}")
    for name, value in seconds.items():
        facts = f"{value / seconds['burnish']:8.1f} ×   differs by {away[name]:.1e} at most" if name in away else ""
        print(f"  {name:<28}{value:10.3f} s{facts}")
    print(f"  (rows and tokens: {len(few.uids)} rows timed, × {scale:.1f} for the tokens of all)")
    sizes = {"rows": options.rows, "width": options.width, "holes": options.holes, "policy_tokens": policy_tokens}
    print(json.dumps({**sizes, "device": device, "torch": torch.__version__, "seconds": seconds, "difference": away}))
    if max(away.values()) > TOLERANCE:
        raise SystemExit(f"the results differ by more than {TOLERANCE}")


def random_batch(rows: int, width: int, holes: float) -> AdvantageInputs:
    random = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, width + 1, (rows, 1), generator=random)
    mask = (torch.arange(width) < lengths) & (torch.rand(rows, width, generator=random) >= holes)
    rewards, values = torch.randn(2, rows, width, generator=random)
    config = AlgorithmConfig(gamma=0.99, lam=0.95)
    return AdvantageInputs(rewards, mask.long(), np.arange(rows), config, values=values)


def first_rows(batch: AdvantageInputs, rows: int) -> AdvantageInputs:
    assert batch.values is not None
    return dataclasses.replace(
        batch,
        token_level_rewards=batch.token_level_rewards[:rows],
        response_mask=batch.response_mask[:rows],
        uids=batch.uids[:rows],
        values=batch.values[:rows],
    )


def over_tokens(inputs: AdvantageInputs) -> Result:
    """One step per column, all rows at once; at an observation both numbers are carried on."""
    assert inputs.values is not None
    gamma, lam, mask = inputs.config.gamma, inputs.config.lam, inputs.response_mask.bool()
    next_value, advantage = torch.zeros(2, len(mask))
    columns = []
    for t in reversed(range(mask.shape[1])):
        value, inside = inputs.values[:, t], mask[:, t]
        delta = inputs.token_level_rewards[:, t] + gamma * next_value - value
        advantage = torch.where(inside, delta + gamma * lam * advantage, advantage)
        next_value = torch.where(inside, value, next_value)
        columns.append(advantage)
    return finished(torch.stack(columns[::-1], dim=1), inputs)


def over_rows_and_tokens(inputs: AdvantageInputs) -> Result:
    """The recursion on Python numbers."""
    assert inputs.values is not None
    gamma, lam = inputs.config.gamma, inputs.config.lam
    rewards, values, mask = (
        tensor.tolist() for tensor in (inputs.token_level_rewards, inputs.values, inputs.response_mask)
    )
    raw = [[0.0] * len(row) for row in mask]
    for i in range(len(mask)):
        next_value = advantage = 0.0
        for t in reversed(range(len(mask[i]))):
            if mask[i][t]:
                delta = rewards[i][t] + gamma * next_value - values[i][t]
                raw[i][t] = advantage = delta + gamma * lam * advantage
                next_value = values[i][t]
    return finished(torch.tensor(raw), inputs)


def finished(raw: torch.Tensor, inputs: AdvantageInputs) -> Result:
    """What follows the recursion: whitened advantages, and returns."""
    assert inputs.values is not None
    mask = inputs.response_mask.bool()
    return zero_outside(masked_whiten(raw, mask), mask), zero_outside(raw + inputs.values, mask)


def fastest(repeat: int, ways: dict[str, Callable[[], Result]]) -> tuple[dict[str, float], dict[str, Result]]:
    """Seconds and results by name. The ways take turns, so that a busy moment does not fall on one of them."""
    seconds: dict[str, float] = {}
    results: dict[str, Result] = {}
    for _ in range(repeat):
        for name, way in ways.items():
            begin = time.perf_counter()
            results[name] = way()
            seconds[name] = min(time.perf_counter() - begin, seconds.get(name, float("inf")))
    return seconds, results


def difference(got: Result, want: Result) -> float:
    """Largest difference of advantages or returns, relative where they are above 1."""
    return max(float(((a - b).abs() / b.abs().clamp(min=1)).max()) for a, b in zip(got, want, strict=True))


if __name__ == "__main__":
    main()
