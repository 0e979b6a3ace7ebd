"""Tasks of `burnish data make`: one short file each, which turns the records of a dataset into rows, or generates them.

task.py       the contract: what a task's file defines as `TASK`, and the helpers it is written with
make.py       a task's rows, split by split, with a count of what was left out and why
held_out.py   which questions are kept apart as the test split: by a hash, independent of order

Adding a task is a file here and a line in `TASKS`. A task's file is imported when it is asked for. No torch.
"""

import importlib
from typing import TYPE_CHECKING

from burnish.config.nearest import nearest
from burnish.errors import ConfigError

if TYPE_CHECKING:
    from burnish.data.tasks.task import Task


#: Each task's one-line summary. Its file has the same name; a task for agents is `TOOL_TASK` in the file it varies.
TASKS = {
    "gsm8k": "grade-school word problems; the answer is a number after ####",
    "gsm8k_tool": "gsm8k for an agent that may check its answer with a tool",
    "math": "competition mathematics; the answer is in \\boxed{}",
    "geo3k": "geometry problems with pictures, or their text alone",
    "geo3k_tool": "geo3k for an agent that may check its answer with a tool",
    "arithmetic": "three-digit sums and differences (generated)",
    "countdown": "reach a target with given numbers, each used once (generated)",
    "multiply": "products of two numbers (generated)",
    "calculator": "products of two numbers, for an agent that may call a calculator (generated)",
    "mbpp": "small Python functions, checked by tests",
    "humaneval": "Python functions to complete, checked by tests",
    "preference": "pairs of a chosen and a rejected answer, for reward models",
    "search_qa": "questions for an agent that searches before it answers",
    "facts": "questions about invented people, with the documents that answer them (generated)",
    "reasoning_gym": "tasks of the package reasoning-gym, with its verifiers (generated)",
}


def find(name: str) -> str:
    """The summary of a task; ConfigError with the nearest one if there is none."""
    if name in TASKS:
        return TASKS[name]
    near = nearest(name, TASKS)
    hint = f"did you mean {near}? " if near else ""
    raise ConfigError(f"no such task: {name}; {hint}There are: {', '.join(TASKS)}")


def load(name: str) -> "Task":
    """The task of that name."""
    find(name)
    module = importlib.import_module(f"{__name__}.{name.removesuffix('_tool')}")
    task: Task = module.TOOL_TASK if name.endswith("_tool") else module.TASK
    return task
