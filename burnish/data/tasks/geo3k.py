"""Geometry3K: problems about a picture, with a short answer. Records without pictures, and all of them with
--text-only, become text rows. geo3k_tool has the same problems for agents with the tool `calc_geo3k_reward`.
"""

from dataclasses import replace

from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks import task
from burnish.data.tasks.task import FileTask, InputColumn, Option, Options, Record, rl_row

MARK = "<image>"
INSTRUCTION = "First reason between <think> and </think>. Then give the final answer in \\boxed{}."

TOOL = "calc_geo3k_reward"


def read(record: Record, options: Options) -> tuple[str, str, Row]:
    problem, images = task.text(record, "problem"), record.get("images")
    if images and not isinstance(images, list):
        images = [images]
    pictures = {} if options["text_only"] or not images else {"images": images}
    if not pictures:
        problem = problem.replace(MARK, "").strip()
    elif MARK not in problem:
        problem = MARK * len(pictures["images"]) + problem
    return problem, task.text_or_number(record, "answer"), pictures


def row(record: Record, options: Options) -> Row:
    problem, answer, pictures = read(record, options)
    prompt = f"{problem}\n\n{INSTRUCTION}"
    return rl_row(options["data_source"], "math", prompt, answer, problem) | pictures


def tool_row(record: Record, options: Options) -> Row:
    problem, answer, pictures = read(record, options)
    prompt = task.tool_prompt(problem, problems="geometry problems", tool=TOOL, form=INSTRUCTION)
    return rl_row(options["data_source"], "math", prompt, answer, problem) | {
        **pictures,
        "agent_name": "tool_agent",
        "tools_kwargs": {TOOL: {"create_kwargs": {"ground_truth": answer}}},
    }


TASK = FileTask(
    about="Geometry problems with a picture each. The reward compares the last \\boxed{} and asks for <think> tags.",
    hub=Hub("hiyouga/geometry3k", "default"),
    reads=(
        InputColumn(("problem",), "the problem, with <image> where a picture belongs"),
        InputColumn(("answer",), "the answer"),
        InputColumn(("images",), "pictures, as paths or as the hub keeps them; may be absent", required=False),
    ),
    data_source="hiyouga/geometry3k",
    row=row,
    options=(Option("text_only", False, "leave the pictures out"),),
)

TOOL_TASK = replace(
    TASK,
    about="The problems of geo3k for an agent with the tool calc_geo3k_reward, which tells it whether it is right.",
    row=tool_row,
)
