"""Every hostile reward function of hostile.py, in processes and in place, plain and async: its sample fails with one
line or is scored, the sample scored next to it keeps its score, and nothing stays behind."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from burnish.rewards.contract import FunctionSpec, ScoreRequest, ScoreResult
from burnish.rewards.failures import apply_policy
from burnish.rewards.function import bind, is_answer, score_here
from burnish.rewards.pool import ScorePool
from tests.processes import until
from tests.rewards import hostile
from tests.rewards.conftest import children
from tests.rewards.hostile import ACTS, ALL, MARK, RAISED, VALUES

pytestmark = pytest.mark.hostile
FORMS = {"plain": "compute_score", "async": "compute_score_async"}
SLOW = {name for name, (_, said) in ACTS.items() if said and "timed out" in said}  # which take their whole time limit


def left_behind() -> list[str]:
    """Programs that a hostile function started, which sleep for MARK seconds."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [str(path)] if MARK.encode() in path.read_bytes().split(b"\0") else []
        except OSError:
            continue
    return found


def pool_of(name: str, timeout: float = 60.0, num_workers: int = 2) -> ScorePool:
    return ScorePool(FunctionSpec(hostile.__file__, name), num_workers, timeout, retries=0)


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[str, ScorePool]]:
    before = children()
    found = {form: pool_of(name) for form, name in FORMS.items()} | {"batch": pool_of("compute_scores")}
    yield found
    for pool in found.values():
        pool.close()
    assert children() <= before and until(lambda: not left_behind())


def asked(*names: str) -> list[ScoreRequest]:
    return [ScoreRequest("test/source", name, index=index) for index, name in enumerate(names, 7)]


def assert_outcome(name: str, results: list[ScoreResult]) -> None:
    """Of the sample of row 7, which is hostile, and those after it, which are honest."""
    first, *others = results
    said, one_line = ALL[name][1], name in VALUES
    assert [result.score for result in others] == [0.5] * len(others), "the samples next to it keep their scores"
    _, report = apply_policy(results, range(len(results)), needs_groups=False, max_failure_ratio=1.0)
    if said is None:
        assert (first.error, first.score, report.metrics()["failures/reward"]) == (None, 1.0, 0)
    else:
        assert first.score is None and re.search(said, first.error), first.error
        assert len(first.error) < 7000 and ("\n" not in first.error or not one_line)
        assert "row index 7" in report.causes and report.metrics()["failures/reward"] == 1
    text = json.dumps(first.info, allow_nan=False)  # in JSON's types, and of a size to be kept
    assert len(text) < 20 * 2**20
    assert {type(key) for key in first.info} <= {str}


def odd_cases() -> Iterator[Any]:
    """Each in every form; those that take seconds in one, unless all hostile functions are run. A function in the batch
    form that raises is no case: all its samples fail together."""
    for name in VALUES | RAISED:
        for form in (*FORMS, "in place", "in place, async", *(["batch"] if name in VALUES else [])):
            takes_long = re.search("million|bomb|nested|tensor", name) and form != "plain"
            yield pytest.param(name, form, marks=[pytest.mark.long] if takes_long else [])


@pytest.mark.parametrize(("name", "form"), [*odd_cases()])
def test_odd_results_and_errors(pools, name, form):
    requests = asked(name, "honest")
    if form.startswith("in place"):
        function = bind(getattr(hostile, FORMS["async" if "async" in form else "plain"]), "it")
        results = score_here(function, requests, "it")
    else:
        results = pools[form].submit_all(requests).result()
    assert_outcome(name, results)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ACTS)
def test_harm_to_the_process(name, form):
    before = children()
    pool = pool_of(FORMS[form], timeout=5.0 if name in SLOW else 60.0)
    try:
        assert_outcome(name, pool.submit_all(asked(name, *["honest"] * 3)).result())
        pool.rest()
        assert pool.submit_all(asked("honest")).result()[0].score == 0.5, "the next one starts as if nothing had been"
    finally:
        pool.close()
    assert children() <= before and until(lambda: not left_behind())


@pytest.mark.parametrize("form", FORMS)
def test_the_end_of_a_process_is_the_failure_of_the_call_that_ended_it(form):
    """Also where an async function runs many calls in it: the others are asked again, each alone."""
    pool = pool_of(FORMS[form], num_workers=1)
    try:
        assert_outcome("os._exit", pool.submit_all(asked("os._exit", *["honest"] * 9)).result())
    finally:
        pool.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["never", "stubborn"])
def test_an_async_function_that_never_ends(name):
    pool = pool_of("compute_score_late", timeout=3.0)
    try:
        results = pool.submit_all(asked(name, "honest", "honest")).result()
        assert "timed out: no score within" in results[0].error
        assert [result.score for result in results[1:]] == [0.5, 0.5]
    finally:
        pool.close()


def test_where_memory_ends_the_kernel_ends_scoring_first(request_of, make_pool):
    pool = make_pool("def compute_score(): return float(open('/proc/self/oom_score_adj').read())")
    assert pool.submit(request_of()).result().score == 1000.0


@pytest.mark.parametrize(
    "answer",
    [
        *({"score": score, "info": {}} for score in (float("nan"), float("inf"), 1e300, 1, "1", None, [1], True, {})),
        *(
            {"score": 1.0, "info": info}
            for info in (None, [], "x", {"a": 10**400}, dict.fromkeys(map(str, range(2000))))
        ),
        *[{"error": 3}, {"error": None}, {}, [], None, 3, "error", {"score": 1.0}, {"info": {}}],
    ],
)
def test_what_is_no_answer(answer):
    assert not is_answer(answer)


def test_what_is_an_answer():
    info = {"acc": float("nan"), "text": hostile.SPOILT, "list": [1, [None, True]], "new_prompts": [{"prompt": "q"}]}
    assert is_answer({"score": 0.5, "info": info}) and is_answer({"error": "why"})
