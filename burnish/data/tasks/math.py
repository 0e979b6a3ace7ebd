"""Competition mathematics: a problem, and an answer (LaTeX) in a column or in the last \\boxed{} of its solution."""

import re

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks import task
from burnish.data.tasks.task import FileTask, InputColumn, LeftOut, Options, Record, is_filled, rl_row, text

INSTRUCTION = "Reason step by step, and put the final answer in \\boxed{}."
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")


def last_boxed(solution: str) -> str | None:
    """What the last \\boxed{…} holds; `\\boxed 7` without braces goes up to the next $. None: there is no whole box."""
    boxes = list(_BOX.finditer(solution))
    if not boxes:
        return None
    rest = solution[boxes[-1].end() :]
    if not rest.startswith("{"):
        return rest.split("$")[0].strip() or None
    depth = 0
    # A brace after a backslash is a character of the formula, not a bracket of LaTeX.
    for brace in re.finditer(r"\\.|[{}]", rest, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0 and brace[0] == "}":
            return rest[1 : brace.start()].strip() or None
    return None


def row(record: Record, options: Options) -> Row:
    problem = text(record, "problem", "question")
    solution = text(record, "solution") if is_filled(record, "solution") else None
    if solution is None or is_filled(record, "answer"):
        answer: str | None = task.text_or_number(record, "answer")
    else:
        answer = last_boxed(solution)
        if answer is None:
            raise LeftOut("'solution' has no \\boxed{} with an answer in it")
    more = task.kept(record, "level", "difficulty", "type", "subject", "unique_id")
    return rl_row(options["data_source"], "math", f"{problem}\n\n{INSTRUCTION}", answer, problem, solution, **more)


TASK = FileTask(
    about="Problems of mathematics competitions. The reward compares the content of the last \\boxed{} as mathematics.",
    hub=Hub("DigitalLearningGmbH/MATH-lighteval", "default"),
    reads=(
        InputColumn(("problem", "question"), "the problem"),
        InputColumn(("answer", "solution"), "the answer, or a solution with the answer in \\boxed{}; an answer wins"),
        InputColumn(("level", "difficulty", "type", "subject"), "kept in extra_info", required=False),
    ),
    data_source="DigitalLearningGmbH/MATH-lighteval",
    row=row,
    example="--train math_train.json --test-size 500",
)
