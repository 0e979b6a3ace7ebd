"""reasoning_gym: the package's own verifiers, and what is kept from them."""

import json
import re
import sys

import pytest

from burnish.data.tasks.reasoning_gym import generate
from burnish.errors import ConfigError, install_command
from burnish.rewards.scores import reasoning_gym
from burnish.rewards.scores.reasoning_gym import check, compute_score, reference
from burnish.rewards.scores.reasoning_gym_guards import GUARDS, REFUSED, is_formula
from tests.rewards.conftest import cases, quick

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


QUICK = "chain_sum leg_counting basic_arithmetic knights_knaves mini_sudoku number_sorting word_ladder".split()


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


def test_a_part_of_a_point_and_nothing_for_no_answer(rows):
    row = rows("mini_sudoku")[0]
    almost = row["reward_model"]["ground_truth"].strip()
    result = score(row, almost[:-1] + ("1" if almost[-1] != "1" else "2"))
    assert 0.5 < result["score"] < 1.0 and result["acc"] == 0.0
    row, nothing = rows("countdown")[0], {"score": 0.0, "acc": 0.0, "format": 0.0, "pred": ""}
    assert compute_score("hm", row["reward_model"]["ground_truth"], row["extra_info"], row["data_source"]) == nothing
    assert score(row, " ") == nothing


@pytest.mark.parametrize("task", RUNNING)
def test_an_answer_is_never_run(rows, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = rows(task)[0]
    for answer in (HARM, f"[{HARM}]", f"[[{HARM}]]", "9**9**9**9", "1e999999999", "x.__class__"):
        with quick():
            assert score(row, answer)["score"] == 0.0, answer
            assert not (tmp_path / "harm").exists()


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
def test_an_answer_does_not_decide_how_long_it_takes(rows, task):
    row = rows(task)[0]
    score(row, "1")
    for answer in ("U99999999", "A+999999999", "1e999999999"):
        with quick():
            assert score(row, answer)["score"] <= 0.05


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


def test_an_answer_that_the_verifier_cannot_read_is_wrong_and_such_a_row_is_an_error(rows):
    for task in ("prime_factorization", "boxnet"):
        assert score(rows(task, 1)[0], "[1]")["score"] == 0.0
        row = json.loads(json.dumps(rows(task, 1)[0]))
        row["extra_info"]["metadata"] = "{}"
        row["reward_model"]["ground_truth"] = row["reward_model"]["ground_truth"] and "seven"
        with pytest.raises(ValueError, match=f"the verifier of {task} cannot work with this row"):
            score(row, "[1]")
    row = rows("puzzle24")[0] | {"extra_info": {"metadata": "{}"}}
    with pytest.raises(ValueError, match="extra_info.metadata has no 'numbers', which the verifier of puzzle24 reads"):
        score(row, "6*4*1*1")


def of_chain_sum(*given):
    return compute_score("<answer>3</answer>", *given, "reasoning_gym/chain_sum")


def test_rows_that_do_not_hold_their_puzzle():
    pytest.importorskip("reasoning_gym")
    for metadata in (None, "", "{", "[]", 3):
        for call in (check, of_chain_sum):
            with pytest.raises(ValueError, match="extra_info.metadata=.*burnish data make reasoning_gym"):
                call("3", {"metadata": metadata})
    for call in (check, reference, of_chain_sum):
        with pytest.raises(ValueError, match="reward_model.ground_truth=3: reasoning_gym needs .* text"):
            call(3, {"metadata": "{}"})
    with pytest.raises(ValueError, match="the row holds none of them"):
        reference(None, {"metadata": "{}"})  # a puzzle with many answers has no reference
    with pytest.raises(ValueError, match="reasoning_gym/rearc cannot be scored: its verifier"):
        check("1", {"metadata": '{"source_dataset": "rearc"}'})


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


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    reasoning_gym._verifier.cache_clear()
    message = re.escape(f"reasoning-gym is not installed: {install_command('reasoning-gym')}")
    for call in (check, of_chain_sum):
        with pytest.raises(ConfigError, match=message):
            call("3", {"metadata": "{}"})


# Which formulas may be parsed by running them: those that can do no harm and cost little.

PLAIN = cases("""
    7*X**9 - 2*X**6 + 7*X**4 + C ;; -X**5/7 - X**3/2 + C ;; x*asin(3*x) + sqrt(1 - 9*x**2)/3 + C
    exp(x)*sin(x) + exp(x)*cos(x) + C ;; 201400*z**7 + 12350*z**6 - 66652*z**5 ;; (x + 1)**(-3/2)
    E**(-6*x - 10) ;; ((x + 1)**2 - 1)**(1/2) ;; 0.5*x**2.5 + pi ;; -3*sin(x + 8)**3*cos(x + 8)
""")


@pytest.mark.parametrize("text", [*PLAIN, " (2*x\n + 1) "])
def test_plain_formulas(text):
    assert is_formula(text)


NOT_PLAIN = cases("""
    x y ;; 2x ;; x.__class__ ;; x.a ;; __import__('os').system('true') ;; eval(x) ;; Integral(x**2, x) ;; Symbol('x')
    N(x) ;; log(x, 2) ;; sin ;; True ;; x[0] ;; x = 3 ;; x! ;; lambda: x ;; 1e999999999 ;; 0xff ;; 1_000 ;; 9**9**9
    9**(9**9) ;; 9**999999 ;; 9**(0*x + 99999999) ;; 9**(99*99*99) ;; ((9**99)**99)**99 ;; 1 if x else 2
""")
LONG = ["9" * 21, "x*" * 2000 + "x", "(" * 900 + "x" + ")" * 900, "-" * 1900 + "x", "a" * 1900 + "!", "1+" * 900 + "1"]


@pytest.mark.parametrize("text", ["", *NOT_PLAIN, *LONG])
def test_texts_that_are_not_formulas_are_rejected_quickly(text):
    with quick():
        assert not is_formula(text)
