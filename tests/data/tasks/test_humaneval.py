import json

import pytest

from burnish.data.tasks.humaneval import TASK, row

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
