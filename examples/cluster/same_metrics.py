"""Compare the metrics of two runs of the same job: `python3 same_metrics.py FOLDER FOLDER [--tolerance 1e-3]`.

Sums are taken in another order when several processes share them, so metrics differ by rounding, and a little more
after every update. What tells of speed, or of how requests met in the engines, is not compared. Prints the metrics that
differ most, relative to their size (to 0.01 where they are smaller); fails where one differs by more than the
tolerance, or only one run has it.
"""

import argparse
import sys
from pathlib import Path

from burnish.tracking.jsonl import read_metrics

# Of the engines: several have smaller batches each, and share fewer prefixes.
BY_NATURE = ("timing_", "perf/", "rollout/steps", "rollout/prefill_tokens", "rollout/shared_tokens")
SMALL = 1e-2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs=2, help="of runs")
    parser.add_argument("--tolerance", type=float, default=1e-3, help="largest relative difference [%(default)s]")
    options = parser.parse_args()
    one, other = (read_metrics(folder) for folder in options.folders)
    if [line["step"] for line in one] != [line["step"] for line in other]:
        sys.exit(f"the runs have other steps: {len(one)} lines and {len(other)}")
    worst: dict[str, float] = {}
    for a, b in zip(one, other, strict=True):
        for name in a | b:
            if not name.startswith(BY_NATURE):
                worst[name] = max(worst.get(name, 0.0), difference(a.get(name), b.get(name)))
    wrong = {name: apart for name, apart in worst.items() if not apart <= options.tolerance}
    for name in sorted(worst, key=worst.__getitem__, reverse=True)[: max(5, len(wrong))]:
        print(f"{worst[name]:10.1e}  {name}")
    if wrong:
        sys.exit(f"{len(wrong)} of {len(worst)} metrics differ by more than {options.tolerance:g}")
    print(f"the same: {len(worst)} metrics of {len(one)} steps, none differs by more than {options.tolerance:g}")


def difference(a: float | None, b: float | None) -> float:
    """Relative to the size; infinite where one is missing."""
    if a is None or b is None:
        return float("inf")
    return abs(a - b) / max(abs(a), SMALL)


if __name__ == "__main__":
    main()
