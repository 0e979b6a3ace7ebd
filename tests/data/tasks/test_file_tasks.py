"""Tasks that turn records of published datasets into rows: one test for each thing a task reads or leaves out."""

import json

import pytest

from burnish.data.tasks import geo3k, gsm8k, humaneval, math, mbpp, search_qa
from burnish.data.tasks.task import LeftOut
from burnish.rewards.scores.gsm8k import compute_score
from tests.data.conftest import refused

GSM8K = {"question": "Two boxes of 700 pens. How many?", "answer": "2 * 700 = <<2*700=1400>>1400\n#### 1,400"}
PICTURE = {"bytes": b"\x89PNG", "path": None}
GEO3K = {"problem": "<image>Find x.", "answer": "48", "images": [PICTURE]}
MBPP = {
    "task_id": 2,
    "prompt": "Write a function to halve a number.",
    "code": "def half(n):\n    return n / 2",
    "test_imports": ["import math"],
    "test_list": ["assert half(4) == 2", "assert math.isnan(half(math.nan))"],
}
HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """The sum."""\n',
    "canonical_solution": "    return sum(numbers)\n",
    "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 2]) == 3\n",
    "entry_point": "total",
}
WHERE = {"question": "Where?", "answer": "Rome"}


def make(task, record, tool=False, **options):
    options = {"data_source": "source", "text_only": False} | options
    return (task.tool_row if tool else task.row)(record, options)


def truth(row):
    return row["reward_model"]["ground_truth"]


def content(row):
    return row["prompt"][-1]["content"]


def run(*programs: str) -> None:
    """A solution and what is run after it, as the sandbox would."""
    exec("\n".join(programs), {})


@pytest.mark.parametrize(
    ("task", "record", "reason"),
    [
        (gsm8k, GSM8K | {"answer": "1400"}, "'answer' does not end with #### and a number"),
        (gsm8k, GSM8K | {"answer": "#### 1400 pens"}, "'answer' does not end with #### and a number"),
        (gsm8k, GSM8K | {"answer": None}, "'answer' is empty"),
        (gsm8k, GSM8K | {"question": "  "}, "'question' is empty"),
        (math, {"problem": "p", "answer": ""}, "'answer' is empty"),
        (math, {"problem": "p", "answer": "", "solution": "I do not know"}, r"'solution' has no .boxed\{\}"),
        (math, {"problem": None, "answer": "1"}, "'problem' is empty"),
        (mbpp, MBPP | {"test_list": []}, "'test_list' is empty"),
        (humaneval, HUMANEVAL | {"prompt": "def total(:"}, "not Python"),
        (search_qa, {"question": "Where?", "answer": ""}, "'answer' is empty"),
        (search_qa, {"question": "Where?", "golden_answers": None}, "'golden_answers' is empty"),
        (search_qa, {"question": "Where?", "answers": [" "]}, "'answers' is empty"),
    ],
)
def test_records_without_question_or_answer_are_left_out(task, record, reason):
    refused(reason, make, task, record, error=LeftOut)


def test_a_column_of_the_wrong_type_is_an_error():
    for task, record, message in [
        (gsm8k, GSM8K | {"question": 5}, r"column 'question' holds 5 \(int\); every row needs text there"),
        (math, {"problem": "p", "answer": ["1"]}, r"column 'answer' holds \['1'\] \(list\); .* text or a number"),
        (search_qa, {"question": "q", "answers": {"a": 1}}, r"'answers' holds \{'a': 1\} \(dict\); .* text or num"),
    ]:
        refused(message, make, task, record)


def test_gsm8k_and_math_rows():
    row = make(gsm8k, GSM8K)
    assert row["prompt"] == [{"role": "user", "content": f"{GSM8K['question']}\n\n{gsm8k.INSTRUCTION}"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "1400"}
    assert row["extra_info"] == {"question": GSM8K["question"], "answer": GSM8K["answer"]}
    assert (row["data_source"], row["ability"]) == ("source", "math")
    assert compute_score(row["extra_info"]["answer"], truth(row)) == 1
    numbers = {"#### 7": "7", "#### -3.5": "-3.5", "#### $1,234,567": "1234567", "#### 12 ": "12"}
    for written, number in numbers.items():  # as the scorer reads them
        assert truth(make(gsm8k, GSM8K | {"answer": f"so\n{written}"})) == number
        assert compute_score(f"#### {number}", number) == 1
    solved = {"problem": "1+1?", "solution": r"It is $\boxed{2}$.", "level": "Level 1", "type": "Algebra"}
    row = make(math, solved)
    assert (content(row), truth(row)) == (f"1+1?\n\n{math.INSTRUCTION}", "2")
    kept = {"level": "Level 1", "type": "Algebra"}
    assert row["extra_info"] == {"question": "1+1?", "answer": solved["solution"], **kept}
    assert truth(make(math, {"problem": "p", "answer": "x^2", "solution": r"\boxed{1}"})) == "x^2"
    assert [truth(make(math, {"problem": "p", "answer": n})) for n in (0, 2.0, 0.5)] == ["0", "2", "0.5"]


def test_tool_rows_give_the_answer_to_the_tool_and_not_to_the_model():
    row = make(gsm8k, GSM8K, tool=True)
    assert row["tools_kwargs"] == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1400"}}}
    assert row["interaction_kwargs"] == {"name": "gsm8k", "query": GSM8K["question"], "ground_truth": "1400"}
    system, user = row["prompt"]
    assert (system["role"], user) == ("system", {"role": "user", "content": GSM8K["question"]})
    assert "`calc_gsm8k_reward`" in system["content"] and "1400" not in system["content"]
    assert truth(row) == "1400" and row["extra_info"]["answer"] == GSM8K["answer"]
    geometry = make(geo3k, GEO3K, tool=True)
    assert row["agent_name"] == geometry["agent_name"] == "tool_agent" and geometry["images"] == [PICTURE]
    assert geometry["tools_kwargs"] == {"calc_geo3k_reward": {"create_kwargs": {"ground_truth": "48"}}}
    assert [message["role"] for message in geometry["prompt"]] == ["system", "user"]
    assert "48" not in geometry["prompt"][0]["content"]


def test_geo3k_keeps_pictures_with_their_marks_and_text_rows_have_neither():
    row = make(geo3k, GEO3K)
    assert (row["images"], truth(row)) == ([PICTURE], "48")
    assert content(row) == f"<image>Find x.\n\n{geo3k.INSTRUCTION}"
    unmarked = make(geo3k, GEO3K | {"problem": "Find x.", "images": ["a.png", "b.png"]})
    assert content(unmarked).startswith("<image><image>Find x.")
    assert make(geo3k, GEO3K | {"images": "a.png"})["images"] == ["a.png"]
    without = {"problem": "<image>Find x.", "answer": 48}
    for record, text_only in ((without, False), (GEO3K | {"images": []}, False), (GEO3K, True)):
        row = make(geo3k, record, text_only=text_only)
        assert "images" not in row and content(row).startswith("Find x.") and truth(row) == "48"


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $\boxed{42}$.", "42"),
        (r"$\boxed{1}$, no, $\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"$\boxed{\{1, 2\}}$", r"\{1, 2\}"),
        (r"$\boxed{\left\{ x \right.}$", r"\left\{ x \right."),
        (r"$\fbox{C}$", "C"),
        (r"$\boxed 7$ apples", "7"),
        (r"$\boxed {8}$", "8"),
        (r"$\boxed{}$", None),
        (r"$\boxed{1", None),
        ("42", None),
    ],
)
def test_math_reads_the_last_box(solution, answer):
    assert math.last_boxed(solution) == answer


def test_mbpp_runs_each_test_after_the_solution_also_of_the_full_dataset():
    row = make(mbpp, MBPP)
    programs = json.loads(truth(row))
    assert programs == [f"import math\n{test}" for test in MBPP["test_list"]]
    for program in programs:
        run(row["extra_info"]["answer"], program)
        with pytest.raises(AssertionError):
            run("def half(n): return 0", program)
    shown = "\n".join(["import math", *MBPP["test_list"]])
    assert content(row).startswith(MBPP["prompt"]) and f"```python\n{shown}\n```" in content(row)
    assert "between ```python and ```" in content(row) and MBPP["code"] not in content(row)
    record = {"text": "Halve.", "code": "c", "test_setup_code": "import cmath", "test_list": ["assert 1"]}
    row = make(mbpp, record)
    assert row["extra_info"] == {"question": "Halve.", "answer": "c"}
    assert json.loads(truth(row)) == ["import cmath\nassert 1"]
    bare = make(mbpp, record | {"test_setup_code": "", "test_imports": ["", ""]})
    assert json.loads(truth(bare)) == ["assert 1"]


def test_humaneval_checks_the_solution_with_helpers_that_it_cannot_redefine():
    row = make(humaneval, HUMANEVAL)
    (program,) = json.loads(truth(row))
    assert program.endswith("check(total)\n")
    run(row["extra_info"]["answer"], program)
    with pytest.raises(AssertionError):
        run("def total(numbers): return 0", program)
    assert f"```python\n{HUMANEVAL['prompt'].strip()}\n```" in content(row) and "return sum" not in content(row)
    assert row["extra_info"]["task_id"] == "HumanEval/0" and row["extra_info"]["entry_point"] == "total"
    assert humaneval.TASK.hub.splits() == {"test": "test"}
    helper = "def twice(x):\n    return 2 * x\n\n\n"
    tests = "def check(candidate):\n    assert twice(candidate([1, 2])) == 6\n"
    row = make(humaneval, HUMANEVAL | {"prompt": helper + HUMANEVAL["prompt"], "test": tests})
    (program,) = json.loads(truth(row))
    run(row["extra_info"]["answer"], program)
    with pytest.raises(AssertionError):
        run("def twice(x): return 6\ndef total(numbers): return 0", program)


@pytest.mark.parametrize(
    ("answers", "target"),
    [
        ({"golden_answers": ["Rome", "Roma"]}, ["Rome", "Roma"]),
        ({"answers": ["Rome", ""]}, ["Rome"]),
        ({"answer": "Rome"}, ["Rome"]),
        ({"answer": 1972}, ["1972"]),
    ],
)
def test_search_qa_takes_one_answer_or_several_and_a_given_source(answers, target):
    row = make(search_qa, {"question": "Where? ", "id": "q1"} | answers)
    assert truth(row) == {"target": target} and row["extra_info"] == {"question": "Where?", "id": "q1"}
    assert content(row).endswith("\n\nQuestion: Where?")
    for tag in ("think", "search", "information", "answer"):
        assert f"<{tag}>" in content(row) and f"</{tag}>" in content(row)
    assert "Rome" not in content(row)
    for given, named, source in [(None, "hotpot", "hotpot"), ("nq", "hotpot", "nq"), (None, None, search_qa.UNNAMED)]:
        assert make(search_qa, WHERE | {"data_source": named}, data_source=given)["data_source"] == source
