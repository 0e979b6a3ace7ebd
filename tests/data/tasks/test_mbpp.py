import json

import pytest

from burnish.data.tasks.mbpp import row
from burnish.data.tasks.task import LeftOut

OPTIONS = {"data_source": "mbpp"}
RECORD = {
    "task_id": 2,
    "prompt": "Write a function to halve a number.",
    "code": "def half(n):\n    return n / 2",
    "test_imports": ["import math"],
    "test_list": ["assert half(4) == 2", "assert math.isnan(half(math.nan))"],
}


def run(*programs: str) -> None:
    """A solution and what is run after it, as the sandbox would."""
    exec("\n".join(programs), {})


def test_each_test_is_a_program_that_runs_after_the_solution():
    made = row(RECORD, OPTIONS)
    programs = json.loads(made["reward_model"]["ground_truth"])
    assert programs == [f"import math\n{test}" for test in RECORD["test_list"]]
    for program in programs:
        run(made["extra_info"]["answer"], program)
        with pytest.raises(AssertionError):
            run("def half(n): return 0", program)


def test_the_prompt_shows_the_tests_and_asks_for_a_fenced_block():
    content = row(RECORD, OPTIONS)["prompt"][0]["content"]
    shown = "\n".join(["import math", *RECORD["test_list"]])
    assert content.startswith(RECORD["prompt"]) and f"```python\n{shown}\n```" in content
    assert "between ```python and ```" in content
    assert RECORD["code"] not in content


def test_the_full_dataset_calls_its_columns_otherwise():
    record = {"text": "Halve.", "code": "c", "test_setup_code": "import cmath", "test_list": ["assert 1"]}
    made = row(record, OPTIONS)
    assert made["extra_info"] == {"question": "Halve.", "answer": "c"}
    assert json.loads(made["reward_model"]["ground_truth"]) == ["import cmath\nassert 1"]
    bare = row(record | {"test_setup_code": "", "test_imports": ["", ""]}, OPTIONS)
    assert json.loads(bare["reward_model"]["ground_truth"]) == ["assert 1"]


@pytest.mark.parametrize("tests", [[], None, [""]])
def test_a_record_without_tests_is_left_out(tests):
    with pytest.raises(LeftOut, match="'test_list' is empty"):
        row(RECORD | {"test_list": tests}, OPTIONS)
