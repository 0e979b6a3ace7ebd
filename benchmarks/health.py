"""What it costs to read the metrics of a run: `python benchmarks/health.py FOLDER`, the folder of any run.

Gives the run's metrics to all health rules once more, as the run itself does after each step, and compares the time
with that of its steps. Then continues with made-up steps, its own with noise, to see whether time and memory grow.
"""

import argparse
import random
import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from burnish.health.watch import Health
from burnish.tracking.jsonl import read_metrics
from burnish.tracking.run_folder import read_config

MARKS = (100, 1_000, 10_000)  # steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    config, lines = read_config(folder), read_metrics(folder)
    steps = [line["timing_s/step"] for line in lines if "timing_s/step" in line]
    health = Health(config)
    read = [seconds(health, line, int(line["step"])) for line in lines]
    share = sum(read) / sum(steps)
    each, most = 1e3 * statistics.median(read), 1e3 * max(read)
    print(f"{len(steps)} steps, median {statistics.median(steps):.3f} s")
    print(f"{len(health.rules)} rules: {each:.2f} ms a step, at most {most:.2f}: {share:.2%} of the steps")

    for is_traced in (False, True):  # tracing takes time itself
        noisy, health, last = random.Random(0), Health(config), deque[float](maxlen=100)
        if is_traced:
            tracemalloc.start()
        for step in range(1, MARKS[-1] + 1):
            line = {name: value * noisy.uniform(0.9, 1.1) for name, value in lines[step % len(lines)].items()}
            last.append(seconds(health, line, step))
            if step in MARKS:
                kept, ms = tracemalloc.get_traced_memory()[0] / 1e3, 1e3 * statistics.median(last)
                print(f"after {step:>6,} steps: " + (f"{kept:.0f} kB" if is_traced else f"{ms:.2f} ms a step"))


def seconds(health: Health, metrics: Mapping[str, float], step: int) -> float:
    begin = time.perf_counter()
    health.observe(metrics, step)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
