"""Geometry3K: problems about a picture, with a short answer.

The column `images` is kept as it is where a record has pictures, and the problem then holds an `<image>` mark for each.
Records without pictures, and all of them with --text-only, become text rows without marks.
"""

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks.task import Column, FileTask, Option, Options, Record, rl_row, text, text_or_number

MARK = "<image>"
INSTRUCTION = "First reason between <think> and </think>. Then give the final answer in \\boxed{}."

HUB = Hub("hiyouga/geometry3k", "default")
DATA_SOURCE = "hiyouga/geometry3k"
READS = (
    Column(("problem",), "the problem, with <image> where a picture belongs"),
    Column(("answer",), "the answer"),
    Column(("images",), "pictures, as paths or as the hub keeps them; may be absent", required=False),
)
OPTIONS = (Option("text_only", False, "leave the pictures out"),)


def read(record: Record, options: Options) -> tuple[str, str, Row]:
    """Problem and answer of a record, and its pictures as a column, where there are any."""
    problem, images = text(record, "problem"), record.get("images")
    if images and not isinstance(images, list):
        images = [images]
    pictures = {} if options["text_only"] or not images else {"images": images}
    if not pictures:
        problem = problem.replace(MARK, "").strip()
    elif MARK not in problem:
        problem = MARK * len(pictures["images"]) + problem
    return problem, text_or_number(record, "answer"), pictures


def row(record: Record, options: Options) -> Row:
    problem, answer, pictures = read(record, options)
    prompt = f"{problem}\n\n{INSTRUCTION}"
    return rl_row(options["data_source"], "math", prompt, answer, problem) | pictures


TASK = FileTask(
    about="Geometry problems with a picture each. The reward compares the last \\boxed{} and asks for <think> tags.",
    hub=HUB,
    reads=READS,
    data_source=DATA_SOURCE,
    row=row,
    options=OPTIONS,
)
