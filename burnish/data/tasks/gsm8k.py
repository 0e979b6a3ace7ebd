"""GSM8K: grade-school word problems, with worked answers that end in `#### <number>` (the ground truth). gsm8k_tool has
the same problems for agents: the tool `calc_gsm8k_reward` and the interaction `gsm8k` know the answer."""

import re
from dataclasses import replace

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks.task import FileTask, InputColumn, LeftOut, Options, Record, rl_row, text, tool_prompt

FORM = "End with a line that holds the answer alone, like this: #### 42"
INSTRUCTION = f"Think step by step. {FORM}"
_NUMBER = re.compile(r"####\s*\$?\s*(-?\$?[\d,]*\.?\d+)\s*$", re.ASCII)

TOOL = "calc_gsm8k_reward"


def read(record: Record) -> tuple[str, str, str]:
    question, worked = text(record, "question"), text(record, "answer")
    number = _NUMBER.search(worked)
    if number is None:
        raise LeftOut("'answer' does not end with #### and a number")
    return question, re.sub(r"[,$]", "", number[1]), worked


def row(record: Record, options: Options) -> Row:
    question, number, worked = read(record)
    return rl_row(options["data_source"], "math", f"{question}\n\n{INSTRUCTION}", number, question, worked)


def tool_row(record: Record, options: Options) -> Row:
    question, number, worked = read(record)
    prompt = tool_prompt(question, problems="word problems", tool=TOOL, form=FORM)
    return rl_row(options["data_source"], "math", prompt, number, question, worked) | {
        "agent_name": "tool_agent",
        "tools_kwargs": {TOOL: {"create_kwargs": {"ground_truth": number}}},
        "interaction_kwargs": {"name": "gsm8k", "query": question, "ground_truth": number},
    }


TASK = FileTask(
    about="Word problems that take two to eight steps of arithmetic. The reward compares the number after ####.",
    hub=Hub("openai/gsm8k", "main"),
    reads=(
        InputColumn(("question",), "the problem"),
        InputColumn(("answer",), "the worked answer, which ends with #### and the number"),
    ),
    data_source="openai/gsm8k",
    row=row,
)

TOOL_TASK = replace(
    TASK,
    about="The problems of gsm8k for an agent with the tool calc_gsm8k_reward, which tells it whether it is right.",
    row=tool_row,
)
