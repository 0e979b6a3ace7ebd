"""Whether calls are recovered, and how fast: `python benchmarks/tool_parsers.py --bfcl FILE --answers FILE`.

FILEs are questions of the Berkeley function-calling leaderboard and their possible answers, a JSON record per line. An
answer allows several values for an argument; "" among them says that it may be left out. Writes each combination of
them (at most --combinations for a question, then each value with the first of the others) in every format that
--formats names, reads it back with the question's schema, and compares name and arguments. Prints, for each format, how
many are recovered exactly and parses per second, then one JSON line to keep; fails where hermes or json lose one.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from burnish.agents.parsers import FORMATS, find_parser
from burnish.agents.parsers.reading import read_json

LEFT_OUT = ""
MUST = ("hermes", "json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bfcl", type=Path, required=True, help="the questions, a JSON record per line")
    parser.add_argument("--answers", type=Path, required=True, help="their possible answers")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), help="call formats; all unless given")
    parser.add_argument("--combinations", type=int, default=256, help="combinations of a question that are tried")
    parser.add_argument("--show", action="store_true", help="print the calls that are not recovered")
    options = parser.parse_args()
    calls = read_calls(options.bfcl, options.answers, options.combinations)
    results = {name: measured(name, calls, options.show) for name in options.formats}
    for name, values in results.items():
        print(f"{name:<12}{values['recovered']:>6} of {len(calls)} recovered, {values['per_second']:>9,.0f} per second")
    print(json.dumps({"calls": len(calls), **results}))
    if lost := [name for name in MUST if name in results and results[name]["recovered"] < len(calls)]:
        raise SystemExit(f"calls are lost in {', '.join(lost)}")


def read_calls(questions: Path, answers: Path, most: int) -> list[tuple[str, dict[str, Any], list[Any]]]:
    """Name, arguments and tools of every possible answer."""
    functions = {record["id"]: record["function"] for record in map(json.loads, questions.read_text().splitlines())}
    calls = []
    for record in map(json.loads, answers.read_text().splitlines()):
        tools = [{"type": "function", "function": function} for function in functions[record["id"]]]
        for truth in record["ground_truth"]:
            for name, allowed in truth.items():
                calls += [(name, arguments, tools) for arguments in possible(allowed, most)]
    return calls


def possible(allowed: dict[str, list[Any]], most: int) -> Iterator[dict[str, Any]]:
    """Arguments that are right: all combinations of allowed values, or each value once where those are too many."""
    columns = [
        [(name, choice) for value in values for choice in choices(value, most)] for name, values in allowed.items()
    ]
    if math.prod(map(len, columns)) <= most:
        rows = list(itertools.product(*columns))
    else:
        first = [column[0] for column in columns]
        rows = [(*first[:i], pair, *first[i + 1 :]) for i, column in enumerate(columns) for pair in column]
    for row in rows:
        yield {name: value for name, value in row if value != LEFT_OUT}


def choices(value: Any, most: int) -> list[Any]:
    """An allowed value; an object allows several values for each of its own keys, alone or as an item of a list."""
    if isinstance(value, dict) and all(isinstance(inner, list) for inner in value.values()):
        return list(possible(value, most))
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [list(row) for row in itertools.islice(itertools.product(*(choices(i, most) for i in value)), most)]
    return [value]


def measured(call_format: str, calls: list[tuple[str, dict[str, Any], list[Any]]], show: bool) -> dict[str, float]:
    parser = find_parser(call_format)
    texts = [parser.write(name, arguments) for name, arguments, _ in calls]
    began = time.perf_counter()
    parsed = [parser.parse(text, tools) for text, (_, _, tools) in zip(texts, calls, strict=True)]
    seconds = time.perf_counter() - began
    recovered = 0
    for got, text, (name, arguments, _) in zip(parsed, texts, calls, strict=True):
        right = (
            [call.name for call in got.calls] == [name]
            and not got.malformed
            and same(read_json(got.calls[0].arguments), arguments)
        )
        recovered += right
        if show and not right:
            print(f"{call_format}: {text}\n  {got}")
    return {"recovered": recovered, "per_second": len(calls) / seconds}


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


if __name__ == "__main__":
    main()
