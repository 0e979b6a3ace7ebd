r"""geo3k against the recorded scores, and where they err."""

import pytest

from burnish.rewards.scores.geo3k import compute_score, is_formed
from tests.recorded import each, golden

GOLDEN = golden("reward_geo3k")

EMPTY = "geo3k/39"  # an empty ground truth is an error of the row
RIGHT = {  # recorded as wrong
    **dict.fromkeys(("geo3k/55", "geo3k/57", "geo3k/69"), "the same value, written in another way"),
    **dict.fromkeys(("geo3k/23", "geo3k/70"), "an equation that names the answer"),
    **dict.fromkeys(("geo3k/68", "geo3k/with_think/68"), "a list in another order"),
    **dict.fromkeys(("geo3k/35", "geo3k/36", "geo3k/with_think/36", "geo3k/37"), "\\boxed 5 and \\fbox{9} are boxes"),
    "geo3k/53": "− is a minus sign",
}


pytestmark = pytest.mark.usefixtures("no_algebra_process_left")


def test_every_case_is_read():
    assert (len(GOLDEN), len(RIGHT)) == (113, 12)


@each(GOLDEN)
def test_golden(case):
    inputs, recorded = case["inputs"], case["expected"]
    options = {name: case["params"][name] for name in ("use_boxed", "format_score")}
    if case["name"] == EMPTY:
        with pytest.raises(ValueError, match="it is empty"):
            compute_score(inputs["solution_str"], inputs["ground_truth"], **options)
        return
    assert not (recorded["acc"] and case["name"] in RIGHT), "listed, but as recorded"
    acc = 1.0 if case["name"] in RIGHT else recorded["acc"]
    result = compute_score(inputs["solution_str"], inputs["ground_truth"], **options)
    assert (result["acc"], result["format"]) == (acc, recorded["format"])
    assert result["score"] == pytest.approx(0.9 * acc + 0.1 * recorded["format"])
    assert case["name"] in RIGHT or result["score"] == pytest.approx(recorded["score"])


def test_the_format_and_its_weight():
    response = "<think>a</think> \\boxed{5}"
    assert is_formed(response)
    for other in (
        "<think>a \\boxed{5}</think> 5",
        " <think>a</think> \\boxed{5}",
        "<think>a \\boxed{5}",
        "<think>a</think> \\boxed{5",
        "<think>" + "</think>" * 50_000,
    ):
        assert not is_formed(other)
    assert compute_score(response, "6", format_score=0.3)["score"] == pytest.approx(0.3)
    assert compute_score("\\boxed{6}", "6", format_score=0.3)["score"] == pytest.approx(0.7)
    assert compute_score(response, "6")["pred"] == "5"
