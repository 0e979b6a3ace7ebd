"""Tasks of `burnish data make`, one file each (task.py has the contract), imported when asked for. No torch. Adding a
task is a file here and a line in `TASKS`."""

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
    if name not in TASKS:
        hint = f"did you mean {near}? " if (near := nearest(name, TASKS)) else ""
        raise ConfigError(f"no such task: {name}; {hint}There are: {', '.join(TASKS)}")
    return TASKS[name]


def load(name: str) -> "Task":
    find(name)
    module = importlib.import_module(f"{__name__}.{name.removesuffix('_tool')}")
    task: Task = module.TOOL_TASK if name.endswith("_tool") else module.TASK
    return task
