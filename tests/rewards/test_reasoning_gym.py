"""reasoning_gym: the package's own verifiers, and what is kept from them."""

import json
import re
import sys
import time

import pytest

from burnish.data.tasks.reasoning_gym import generate
from burnish.errors import ConfigError, install_command
from burnish.rewards.scores import reasoning_gym
from burnish.rewards.scores.reasoning_gym import check, compute_score, reference
from burnish.rewards.scores.reasoning_gym_guards import GUARDS, REFUSED

HARM = "__import__('pathlib').Path('harm').touch()"
# Tasks that run an answer as Python, each with a way to try it.
RUNNING = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion", "countdown", "puzzle24")
RUNNING += ("polynomial_multiplication", "simple_integration", "intermediate_integration")


@pytest.fixture(scope="module")
def rows():
    """Rows of a task as `burnish data make` writes them, made once."""
    pytest.importorskip("reasoning_gym")
    made: dict[str, list[dict]] = {}

    def of(task: str, count: int = 3) -> list[dict]:
        if len(made.get(task, [])) < count:
            made[task] = generate("train", count, 1, {"tasks": task})
        return made[task][:count]

    return of


def score(row: dict, answer: str) -> dict:
    truth, extra_info = row["reward_model"]["ground_truth"], row["extra_info"]
    return compute_score(f"I think\n<answer>{answer}</answer>", truth, extra_info, row["data_source"])


QUICK = (
    "chain_sum",
    "leg_counting",
    "basic_arithmetic",
    "knights_knaves",
    "mini_sudoku",
    "number_sorting",
    "word_ladder",
)


@pytest.mark.parametrize("task", sorted({*QUICK, *GUARDS} - {"rubiks_cube", "rush_hour"}))
def test_the_packages_own_answers_are_right(rows, task):
    for row in rows(task):
        truth, extra_info = row["reward_model"]["ground_truth"], row["extra_info"]
        check(truth, extra_info)
        if "Integral" in truth:  # not solved by the package itself
            continue
        for response in (extra_info["answer"], reference(truth, extra_info)):
            result = compute_score(response, truth, extra_info, row["data_source"])
            assert (result["score"], result["acc"], result["format"], result["pred"]) == (1.0, 1.0, 1.0, truth.strip())


def test_a_part_of_a_point(rows):
    row = rows("mini_sudoku")[0]
    almost = row["reward_model"]["ground_truth"].strip()
    almost = almost[:-1] + ("1" if almost[-1] != "1" else "2")
    result = score(row, almost)
    assert 0.5 < result["score"] < 1.0 and result["acc"] == 0.0


def test_no_answer_scores_nothing(rows):
    row = rows("countdown")[0]
    nothing = {"score": 0.0, "acc": 0.0, "format": 0.0, "pred": ""}
    assert compute_score("hm", row["reward_model"]["ground_truth"], row["extra_info"], row["data_source"]) == nothing
    assert score(row, " ") == nothing


@pytest.mark.parametrize("task", RUNNING)
@pytest.mark.parametrize("answer", [HARM, f"[{HARM}]", f"[[{HARM}]]", "9**9**9**9", "1e999999999", "x.__class__"])
def test_an_answer_is_never_run(rows, task, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row, began = rows(task)[0], time.process_time()
    reasoning_gym._verifier(task)
    assert score(row, answer)["score"] == 0.0
    assert not (tmp_path / "harm").exists()
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("task", "field"),
    [
        ("simple_integration", "integrand"),
        ("intermediate_integration", "variable"),
        ("bitwise_arithmetic", "problem"),
        ("polynomial_multiplication", None),
        ("number_sorting", None),
    ],
)
def test_the_rows_own_texts_are_never_run(rows, task, field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = json.loads(json.dumps(rows(task)[0]))
    answer = row["reward_model"]["ground_truth"]
    if field is None:
        row["reward_model"]["ground_truth"] = HARM
    else:
        row["extra_info"]["metadata"] = json.dumps(json.loads(row["extra_info"]["metadata"]) | {field: HARM})
    with pytest.raises(ValueError, match="harm"):
        score(row, answer)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("task", ["rubiks_cube", "rush_hour", "coin_flip"])
@pytest.mark.parametrize("answer", ["U99999999", "A+999999999", "1e999999999"])
def test_an_answer_does_not_decide_how_long_it_takes(rows, task, answer):
    row = rows(task)[0]
    score(row, "1")
    began = time.process_time()
    assert score(row, answer)["score"] <= 0.05
    assert time.process_time() - began < 5


def test_wrong_answers_that_the_package_takes_for_right(rows):
    for row in rows("game_of_life_halting", 6):
        other = {"True": "False", "False": "True"}[row["reward_model"]["ground_truth"]]
        assert score(row, other)["score"] == 0.0 and score(row, "who knows")["score"] == 0.0
        assert score(row, row["reward_model"]["ground_truth"].lower())["score"] == 1.0
    for row in rows("puzzle24", 6):
        numbers = json.loads(row["extra_info"]["metadata"])["numbers"]
        assert sorted(numbers) == [1, 1, 4, 6] or score(row, "6*4*1*1")["score"] == 0.0
    assert all(score(row, "nan")["score"] == 0.0 for row in rows("complex_arithmetic"))
    long = [row for row in rows("coin_flip", 12) if len(row["reward_model"]["ground_truth"]) > 6]
    assert long and all(score(row, row["reward_model"]["ground_truth"][:3])["score"] == 0.0 for row in long)
    for row in rows("intermediate_integration"):
        metadata = json.loads(row["extra_info"]["metadata"])
        assert score(row, f"Integral({metadata['integrand']}, {metadata['variable']})")["score"] == 0.0


def test_an_answer_that_the_verifier_cannot_read_is_wrong(rows):
    for task in ("prime_factorization", "boxnet"):
        assert score(rows(task, 1)[0], "[1]")["score"] == 0.0


def test_a_row_that_the_verifier_cannot_read_is_an_error(rows):
    for task in ("prime_factorization", "boxnet"):
        row = json.loads(json.dumps(rows(task, 1)[0]))
        row["extra_info"]["metadata"] = "{}"
        row["reward_model"]["ground_truth"] = row["reward_model"]["ground_truth"] and "seven"
        with pytest.raises(ValueError, match=f"the verifier of {task} cannot work with this row"):
            score(row, "[1]")
    row = rows("puzzle24")[0] | {"extra_info": {"metadata": "{}"}}
    with pytest.raises(ValueError, match="extra_info.metadata has no 'numbers', which the verifier of puzzle24 reads"):
        score(row, "6*4*1*1")


@pytest.mark.parametrize("metadata", [None, "", "{", "[]", 3])
def test_a_row_without_metadata(metadata):
    pytest.importorskip("reasoning_gym")
    for call in (check, lambda *given: compute_score("<answer>3</answer>", *given, "reasoning_gym/chain_sum")):
        with pytest.raises(ValueError, match="extra_info.metadata=.*burnish data make reasoning_gym"):
            call("3", {"metadata": metadata})


def test_a_ground_truth_that_is_no_text():
    pytest.importorskip("reasoning_gym")
    for call in (
        check,
        reference,
        lambda *given: compute_score("<answer>3</answer>", *given, "reasoning_gym/chain_sum"),
    ):
        with pytest.raises(ValueError, match="reward_model.ground_truth=3: reasoning_gym needs .* text"):
            call(3, {"metadata": "{}"})


def test_a_puzzle_with_many_answers_has_no_reference():
    with pytest.raises(ValueError, match="the row holds none of them"):
        reference(None, {"metadata": "{}"})


@pytest.mark.parametrize(
    ("data_source", "message"),
    [
        ("reasoning_gym/chain_sun", "reasoning-gym has no task of this name"),
        ("chain_sum", "must be reasoning_gym/ and the name of a task"),
        *((f"reasoning_gym/{task}", f"{task} cannot be scored") for task in REFUSED),
    ],
)
def test_sources_that_cannot_be_scored(data_source, message):
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match=message):
        compute_score("<answer>3</answer>", "3", {"metadata": "{}"}, data_source)


def test_refused_tasks_are_reported_when_a_dataset_is_loaded():
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match="reasoning_gym/rearc cannot be scored: its verifier"):
        check("1", {"metadata": '{"source_dataset": "rearc"}'})


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    reasoning_gym._verifier.cache_clear()
    message = re.escape(f"reasoning-gym is not installed: {install_command('reasoning-gym')}")
    for call in (check, lambda *given: compute_score("<answer>3</answer>", *given, "reasoning_gym/chain_sum")):
        with pytest.raises(ConfigError, match=message):
            call("3", {"metadata": "{}"})
