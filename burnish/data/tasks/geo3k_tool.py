"""Geometry3K for agents: the row names the tool loop, and gives the answer checker the right answer.

The tool `calc_geo3k_reward` tells the agent whether an answer is right. It gets the ground
truth from the row, out of the model's sight.
"""

from burnish.data.files import Row
from burnish.data.tasks import geo3k
from burnish.data.tasks.task import FileTask, Options, Record, rl_row, tool_prompt

TOOL = "calc_geo3k_reward"


def row(record: Record, options: Options) -> Row:
    problem, answer, pictures = geo3k.read(record, options)
    prompt = tool_prompt(problem, problems="geometry problems", tool=TOOL, form=geo3k.INSTRUCTION)
    return rl_row(options["data_source"], "math", prompt, answer, problem) | {
        **pictures,
        "agent_name": "tool_agent",
        "tools_kwargs": {TOOL: {"create_kwargs": {"ground_truth": answer}}},
    }


TASK = FileTask(
    about="The problems of geo3k for an agent with the tool calc_geo3k_reward, which tells it whether it is right.",
    hub=geo3k.HUB,
    reads=geo3k.READS,
    data_source=geo3k.DATA_SOURCE,
    row=row,
    options=geo3k.OPTIONS,
)
