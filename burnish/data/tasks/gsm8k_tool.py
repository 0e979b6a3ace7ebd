"""GSM8K for agents: the row names the tool loop and sets up the answer checker and the interaction.

The tool `calc_gsm8k_reward` tells the agent whether an answer is right; the interaction `gsm8k` gives hints until it
is. Both get the ground truth from the row, out of the model's sight.
"""

from burnish.data.files import Row
from burnish.data.tasks import gsm8k
from burnish.data.tasks.task import FileTask, Options, Record, rl_row, tool_prompt

TOOL = "calc_gsm8k_reward"


def row(record: Record, options: Options) -> Row:
    question, number, worked = gsm8k.read(record)
    prompt = tool_prompt(question, problems="word problems", tool=TOOL, form=gsm8k.FORM)
    return rl_row(options["data_source"], "math", prompt, number, question, worked) | {
        "agent_name": "tool_agent",
        "tools_kwargs": {TOOL: {"create_kwargs": {"ground_truth": number}}},
        "interaction_kwargs": {"name": "gsm8k", "query": question, "ground_truth": number},
    }


TASK = FileTask(
    about="The problems of gsm8k for an agent with the tool calc_gsm8k_reward, which tells it whether it is right.",
    hub=gsm8k.HUB,
    reads=gsm8k.READS,
    data_source=gsm8k.DATA_SOURCE,
    row=row,
)
