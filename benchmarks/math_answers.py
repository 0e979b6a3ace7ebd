"""Whether right mathematics is rewarded, wrong is not, and how fast: `python benchmarks/math_answers.py --math FILE`.

FILE is MATH as a JSON list of records with "answer". Scores each row's own answer, the same respelled, another row's
answer, and its own with one digit changed. Prints, for each, how many are equal, the share that needed math-verify, and
scores per second, then one JSON line to keep; fails where less than 99% of the rows' own answers are equal, or more
than 0.1% of the others.
"""

import argparse
import json
import random
import re
import time
from pathlib import Path

from burnish.rewards.equivalence import algebra, equivalent
from burnish.rewards.scores.math import check


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--math", type=Path, required=True, help="MATH's records, a JSON list")
    parser.add_argument("--show", action="store_true", help="print the pairs that are equal though wrong")
    options = parser.parse_args()
    records = json.loads(options.math.read_text())
    truths = [record["answer"] for record in records if is_answer(record["answer"])]
    others = random.Random(0).sample(truths, len(truths))
    equivalent(r"\log_2 8", "3")  # so that starting math-verify is not counted
    results = {
        "own": measured([(truth, truth) for truth in truths]),
        "respelled": measured([(respelled(truth), truth) for truth in truths]),
        "another": measured(wrong := [(a, b) for a, b in zip(others, truths, strict=True) if a != b], options.show),
        "digit": measured([(changed(truth), truth) for truth in truths if re.search(r"\d", truth)], options.show),
    }
    algebra.stop()
    for name, values in results.items():
        print(
            f"{name:<10}{values['right']:>6} of {values['pairs']} equal, {values['asked']:.2%} needed math-verify, "
            f"{values['per_second']:,.0f} per second, {values['per_second_without']:,.0f} without it"
        )
    print(json.dumps({"rows": len(records), **results}))
    few = results["own"]["right"] < 0.99 * len(records) or results["respelled"]["right"] < 0.99 * len(records)
    if few or results["another"]["right"] > 0.001 * len(wrong) or results["digit"]["right"] > 0.001 * len(truths):
        raise SystemExit("right answers are not rewarded, or wrong ones are")


def is_answer(truth: object) -> bool:
    try:
        check(truth, {})
    except ValueError:
        return False
    return True


def respelled(truth: str) -> str:
    spaced = re.sub(r"(?<=[=+)])(?=\S)", " ", truth.replace("\\frac", "\\dfrac"))
    return f"$ {spaced} $."


def changed(truth: str) -> str:
    at = random.Random(truth).choice([digit.start() for digit in re.finditer(r"\d", truth)])
    return f"{truth[:at]}{(int(truth[at]) + 1) % 10}{truth[at + 1 :]}"


def measured(pairs: list[tuple[str, str]], show: bool = False) -> dict[str, float]:
    right = asked = 0
    seconds = {True: 0.0, False: 0.0}
    for answer, truth in pairs:
        began = time.perf_counter()
        verdict = equivalent(answer, truth)
        seconds[verdict.asked > 0] += time.perf_counter() - began
        right, asked = right + verdict.equal, asked + (verdict.asked > 0)
        if show and verdict.equal:
            print(f"equal: {answer!r} and {truth!r}")
    return {
        "pairs": len(pairs), "right": right, "asked": asked / len(pairs),
        "per_second": len(pairs) / sum(seconds.values()), "per_second_without": (len(pairs) - asked) / seconds[False],
    }  # fmt: skip


if __name__ == "__main__":
    main()
