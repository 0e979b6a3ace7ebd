import json

import pytest

from burnish.data.tasks.humaneval import TASK, row
from burnish.data.tasks.task import LeftOut

RECORD = {
    "task_id": "HumanEval/0",
    "prompt": 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """The sum."""\n',
    "canonical_solution": "    return sum(numbers)\n",
    "test": "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate([1, 2]) == 3\n",
    "entry_point": "total",
}


def run(*programs: str) -> None:
    exec("\n".join(programs), {})


def test_the_program_runs_after_the_solution_and_checks_it():
    made = row(RECORD, {"data_source": "humaneval"})
    (program,) = json.loads(made["reward_model"]["ground_truth"])
    assert program.endswith("check(total)\n")
    run(made["extra_info"]["answer"], program)
    with pytest.raises(AssertionError):
        run("def total(numbers): return 0", program)


def test_the_prompt_shows_the_start_alone():
    made = row(RECORD, {"data_source": "humaneval"})
    content = made["prompt"][0]["content"]
    assert f"```python\n{RECORD['prompt'].strip()}\n```" in content and "return sum" not in content
    assert made["extra_info"]["task_id"] == "HumanEval/0" and made["extra_info"]["entry_point"] == "total"


def test_there_is_a_test_split_only():
    assert TASK.hub.splits() == {"test": "test"}


def test_helpers_of_the_prompt_cannot_be_defined_again():
    helper = "def twice(x):\n    return 2 * x\n\n\n"
    tests = "def check(candidate):\n    assert twice(candidate([1, 2])) == 6\n"
    made = row(RECORD | {"prompt": helper + RECORD["prompt"], "test": tests}, {"data_source": "humaneval"})
    (program,) = json.loads(made["reward_model"]["ground_truth"])
    run(made["extra_info"]["answer"], program)
    with pytest.raises(AssertionError):
        run("def twice(x): return 6\ndef total(numbers): return 0", program)


def test_a_prompt_that_is_not_python_is_left_out():
    with pytest.raises(LeftOut, match="not Python"):
        row(RECORD | {"prompt": "def total(:"}, {"data_source": "humaneval"})
