"""HumanEval: Python functions to complete, given their signature and docstring. There is a test split only.

The ground truth is one program to be run after the solution: what the prompt defines besides the function (tests use
it as it was given, not as a solution may define it again), the tests, then `check(<function>)`.
"""

import ast
import json

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks.mbpp import INSTRUCTION
from burnish.data.tasks.task import FileTask, InputColumn, LeftOut, Options, Record, kept, rl_row, text


def row(record: Record, options: Options) -> Row:
    start, name = text(record, "prompt"), text(record, "entry_point")
    prompt = f"Complete the Python function `{name}`.\n\n```python\n{start.strip()}\n```\n\n{INSTRUCTION}"
    try:
        tree = ast.parse(start)
    except SyntaxError as error:
        raise LeftOut("the prompt is not Python") from error
    tree.body = [node for node in tree.body if getattr(node, "name", None) != name]
    helpers = f"{ast.unparse(tree)}\n\n" if tree.body else ""
    program = f"{helpers}{text(record, 'test').strip()}\n\ncheck({name})\n"
    solution = start + text(record, "canonical_solution")
    more = kept(record, "task_id", "entry_point")
    return rl_row(options["data_source"], "code", prompt, json.dumps([program]), start, solution, **more)


TASK = FileTask(
    about="164 functions to complete. The reward runs the tests after the answer, in a sandbox.",
    hub=Hub("openai/openai_humaneval", "openai_humaneval", train=None),
    reads=(
        InputColumn(("prompt",), "the start of the function: imports, signature, docstring"),
        InputColumn(("entry_point",), "the name of the function"),
        InputColumn(("test",), "a program that defines check(candidate)"),
        InputColumn(("canonical_solution",), "the body of a solution"),
    ),
    data_source="humaneval",
    row=row,
)
