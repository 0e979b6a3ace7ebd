"""How fast reference answers are scored: `python benchmarks/score.py --gsm8k train.jsonl --mbpp sanitized-mbpp.json`.

Takes GSM8K's records (JSON lines with question and answer) and MBPP's (a JSON list with code and tests) as they are
published, and scores each one's own answer as a run would: numbers in place, programs with all their tests in the
sandbox, in scoring processes. One program is scored beforehand, so that starting these is not counted. Prints scores
per second, the same per core (numbers take one, programs all that there are), and one JSON line to keep. For each of
MBPP's tasks it also scores, untimed, a program whose functions return None. Fails where a reference answer does not
score 1, or such a program does not score 0.
"""

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from burnish.config.reward import RuleConfig, SandboxConfig
from burnish.data.tasks import gsm8k, mbpp
from burnish.rewards.code_tests import Programs, read_tests
from burnish.rewards.contract import FunctionSpec, ScoreRequest
from burnish.rewards.scoring import Scoring

CORES = len(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gsm8k", type=Path, help="GSM8K's records, a JSON object per line")
    parser.add_argument("--mbpp", type=Path, help="MBPP's records, a JSON list")
    parser.add_argument("--max-concurrent", type=int, default=2 * CORES, help="programs at a time")
    options = parser.parse_args()
    if not (options.gsm8k or options.mbpp):
        parser.error("nothing to score: give --gsm8k or --mbpp")
    scoring = Scoring(
        FunctionSpec(),
        num_workers=CORES,
        timeout=300.0,
        rules=RuleConfig(sandbox=SandboxConfig(max_concurrent=options.max_concurrent)),
    )
    results = {}
    try:
        if options.gsm8k:
            records = [json.loads(line) for line in options.gsm8k.read_text().splitlines() if line.strip()]
            results["gsm8k"] = measured(scoring, requests(records, gsm8k.row, "openai/gsm8k"), cores=1)
        if options.mbpp:
            programs = requests(json.loads(options.mbpp.read_text()), mbpp.row, "mbpp")
            scoring.score_all(programs[:1])
            results["mbpp"] = measured(scoring, programs, cores=CORES)
            without = scoring.score_all([returning_none(request) for request in programs])
            results["mbpp"]["none_scores_0"] = sum(result.score == 0.0 for result in without)
    finally:
        scoring.close()
    for name, values in results.items():
        print(
            f"{name:<8}{values['answers']:>6} answers, {values['right']} right, in {values['seconds']:.1f} s: "
            f"{values['per_second']:.1f} scores per second, {values['per_second_and_core']:.1f} per core"
        )
        if "none_scores_0" in values:
            print(f"{name:<8}{values['answers']:>6} programs that return None, {values['none_scores_0']} score 0")
    print(json.dumps({**results, "cores": CORES, "max_concurrent": options.max_concurrent}))
    if any(values["right"] < values["answers"] for values in results.values()):
        raise SystemExit("not all reference answers score 1")
    if any(values.get("none_scores_0", values["answers"]) < values["answers"] for values in results.values()):
        raise SystemExit("not all programs that return None score 0")


def requests(records: list[dict[str, Any]], row: Callable[..., dict[str, Any]], source: str) -> list[ScoreRequest]:
    rows = [row(record, {"data_source": source}) for record in records]
    return [
        ScoreRequest(source, row["extra_info"]["answer"], row["reward_model"]["ground_truth"], row["extra_info"])
        for row in rows
    ]


def returning_none(request: ScoreRequest) -> ScoreRequest:
    tests = read_tests(request.ground_truth, request.extra_info)
    assert isinstance(tests, Programs)
    program = "".join(f"def {name}(*args, **kwargs): return None\n" for name in tests.names.take)
    return dataclasses.replace(request, solution_str=program)


def measured(scoring: Scoring, wanted: list[ScoreRequest], cores: int) -> dict[str, float]:
    began = time.perf_counter()
    results = scoring.score_all(wanted)
    seconds = time.perf_counter() - began
    for request, result in zip(wanted, results, strict=True):
        if result.score != 1.0:
            print(f"{result.score}: {result.error or result.info.get('why')}: {request.solution_str[:200]!r}")
    rate = len(results) / seconds
    right = sum(result.score == 1.0 for result in results)
    return {
        "answers": len(results), "right": right, "seconds": seconds,
        "per_second": rate, "per_second_and_core": rate / cores,
    }  # fmt: skip


if __name__ == "__main__":
    main()
