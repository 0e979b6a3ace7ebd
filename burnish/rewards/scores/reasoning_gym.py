"""Puzzles of the package reasoning-gym: the last `<answer>…</answer>` goes to the verifier of the row's task, which
gives 0 to 1. Imported when the first response is scored; only the process that scores bounds a verifier's time.

How it differs from the package: no answer scores 0 (some verifiers give 0.01), and reasoning_gym_guards.py says which
answers are not handed over, because they would be run as Python, take for ever, or wrongly get full marks. A verifier
that raises is asked about the row's own answer (or, where there is none, about an empty one): if it raises on that too,
the row is broken, which is an error; else the answer could not be read, and scores 0.
"""

import functools
import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from typing import Any

from burnish.errors import ConfigError, install_command
from burnish.rewards.scores.answer_tag import last_answer, tagged
from burnish.rewards.scores.reasoning_gym_guards import GUARDS, REFUSED

PREFIX = "reasoning_gym/"
FULL_MARKS = 1.0
Verifier = Callable[[str, dict[str, Any]], float]


def compute_score(
    solution_str: str, ground_truth: str | None, extra_info: Mapping[str, Any], data_source: str
) -> dict[str, float | str]:
    data_source = data_source.lower()
    if not data_source.startswith(PREFIX):
        raise ValueError(
            f"data_source={data_source!r}: must be {PREFIX} and the name of a task, e.g. {PREFIX}chain_sum"
        )
    task = data_source.removeprefix(PREFIX)
    _demand_text(ground_truth)
    verify, entry = _verifier(task), {"question": extra_info.get("question", ""), "answer": ground_truth}
    entry["metadata"] = _metadata(extra_info)
    answer = last_answer(solution_str) or ""
    score = _score(task, verify, answer, entry) if answer else 0.0
    return {"score": score, "acc": float(score >= FULL_MARKS), "format": float(bool(answer)), "pred": answer}


def reference(ground_truth: str | None, extra_info: Mapping[str, Any]) -> str:
    """Reasoning-gym's own answer. ValueError where a puzzle has many and the row holds none."""
    _demand_text(ground_truth)
    if ground_truth is None:
        raise ValueError("the puzzle has many right answers, and the row holds none of them (ground_truth is None)")
    return tagged(ground_truth)


def check(ground_truth: str | None, extra_info: Mapping[str, Any]) -> None:
    """ValueError where the row does not hold its puzzle; ConfigError where the package is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise _not_installed()
    _demand_text(ground_truth)
    task = _metadata(extra_info).get("source_dataset")
    if isinstance(task, str) and task in REFUSED:
        raise ValueError(_refusal(task))


def _score(task: str, verify: Verifier, answer: str, entry: dict[str, Any]) -> float:
    guard = GUARDS.get(task)
    try:
        if guard and not guard(answer, entry):
            return 0.0
    except KeyError as error:
        raise ValueError(f"extra_info.metadata has no {error}, which the verifier of {task} reads") from error
    try:
        return float(verify(answer, entry))
    except Exception:  # noqa: BLE001  verifiers raise on answers that they cannot read
        own = "{}" if entry["answer"] is None else entry["answer"]
        try:
            verify(own, entry)
        except Exception as error:
            raise ValueError(f"the verifier of {task} cannot work with this row: {error!r}") from error
        return 0.0


@functools.cache
def _verifier(task: str) -> Verifier:
    try:
        factory = importlib.import_module("reasoning_gym.factory")
    except ImportError as error:
        raise _not_installed() from error
    if task in REFUSED:
        raise ValueError(_refusal(task))
    if task not in factory.DATASETS:
        raise ValueError(f"data_source={PREFIX}{task}: reasoning-gym has no task of this name")
    verify: Verifier = factory.get_score_answer_fn(task)
    return verify


def _metadata(extra_info: Mapping[str, Any]) -> dict[str, Any]:
    stored = extra_info.get("metadata")
    try:
        metadata = json.loads(stored) if isinstance(stored, str) else stored
    except ValueError:
        metadata = None
    if not isinstance(metadata, Mapping):
        raise ValueError(
            f"extra_info.metadata={stored!r:.200}: must be the puzzle's metadata as JSON text, as "
            "`burnish data make reasoning_gym` writes it"
        )
    return dict(metadata)


def _demand_text(ground_truth: Any) -> None:
    if ground_truth is not None and not isinstance(ground_truth, str):
        raise ValueError(
            f"reward_model.ground_truth={ground_truth!r:.200}: reasoning_gym needs the puzzle's answer as text, or "
            "None where it has many"
        )


def _refusal(task: str) -> str:
    return f"data_source={PREFIX}{task} cannot be scored: {REFUSED[task]}"


def _not_installed() -> ConfigError:
    return ConfigError(f"the package reasoning-gym is not installed: {install_command('reasoning-gym')}")
