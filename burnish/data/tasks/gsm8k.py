"""GSM8K: word problems of primary school, with worked answers that end in `#### <number>`.

The ground truth is that number, without commas. The worked answer goes along as `extra_info.answer`.
"""

import re

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks.task import Column, FileTask, LeftOut, Options, Record, rl_row, text

FORM = "End with a line that holds the answer alone, like this: #### 42"
INSTRUCTION = f"Think step by step. {FORM}"
_NUMBER = re.compile(r"####\s*\$?\s*(-?\$?[\d,]*\.?\d+)\s*$", re.ASCII)

READS = (
    Column(("question",), "the problem"),
    Column(("answer",), "the worked answer, which ends with #### and the number"),
)
HUB = Hub("openai/gsm8k", "main")
DATA_SOURCE = "openai/gsm8k"


def read(record: Record) -> tuple[str, str, str]:
    """Question, number and worked answer of a record."""
    question, worked = text(record, "question"), text(record, "answer")
    number = _NUMBER.search(worked)
    if number is None:
        raise LeftOut("'answer' does not end with #### and a number")
    return question, re.sub(r"[,$]", "", number[1]), worked


def row(record: Record, options: Options) -> Row:
    question, number, worked = read(record)
    return rl_row(options["data_source"], "math", f"{question}\n\n{INSTRUCTION}", number, question, worked)


TASK = FileTask(
    about="Word problems that take two to eight steps of arithmetic. The reward compares the number after ####.",
    hub=HUB,
    reads=READS,
    data_source=DATA_SOURCE,
    row=row,
)
