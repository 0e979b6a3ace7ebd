"""MBPP: small Python functions, described in a sentence and checked by asserts. The prompt shows these, since they
alone say what the function is called. The ground truth is a program per assert, with the imports, to be run after the
solution."""

import json

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks.task import FileTask, InputColumn, LeftOut, Options, Record, kept, rl_row, text, texts

INSTRUCTION = "Answer with the whole function, imports included, in one block between ```python and ```."


def row(record: Record, options: Options) -> Row:
    task, tests = text(record, "prompt", "text"), texts(record, "test_list")
    imports = [*_lines(record, "test_imports"), *_lines(record, "test_setup_code")]
    shown = "\n".join([*imports, *tests])
    prompt = f"{task}\n\nThe function has to pass these tests:\n\n```python\n{shown}\n```\n\n{INSTRUCTION}"
    programs = json.dumps(["\n".join([*imports, test]) for test in tests], ensure_ascii=False)
    solution = text(record, "code")
    return rl_row(options["data_source"], "code", prompt, programs, task, solution, **kept(record, "task_id"))


def _lines(record: Record, name: str) -> list[str]:
    """A column of code in which most records have nothing."""
    try:
        return texts(record, name)
    except LeftOut:
        return []


TASK = FileTask(
    about="Functions of a few lines, for beginners. The reward runs the asserts after the answer, in a sandbox.",
    hub=Hub("google-research-datasets/mbpp", "sanitized"),
    reads=(
        InputColumn(("prompt", "text"), "what the function is to do"),
        InputColumn(("test_list",), "asserts"),
        InputColumn(("code",), "a solution"),
        InputColumn(("test_imports", "test_setup_code"), "what runs before the asserts", required=False),
    ),
    data_source="mbpp",
    row=row,
    example="--train sanitized-mbpp.json --test-size 100",
)
