"""Two ways in which a policy calls tools: by the messages of its chat template, or by ReAct's lines of text.

A protocol decides what the prompt is, where a turn stops, which calls it makes, and how results are shown. The loop
(`tool.py`) is the same for both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from burnish.agents.environment import Environment
from burnish.agents.parsers import find_parser
from burnish.agents.parsers.base import Schema
from burnish.agents.tools.base import BaseTool
from burnish.data.chat import Message
from burnish.rollout.base import Completion

REACT = "react"


@dataclass(frozen=True)
class Observation:
    """One result that the policy is shown after a call."""

    text: str
    name: str
    call_id: str | None = None


class CallProtocol:
    """How one trajectory calls tools: the template shows them, and results are messages of the role `tool`."""

    stops: tuple[str, ...] = ()  # strings that end a turn

    def __init__(self, environment: Environment, schemas: Sequence[Schema], call_format: str):
        self.environment, self.schemas = environment, schemas
        self.parser = find_parser(call_format)

    def opening(self, messages: Sequence[Message]) -> tuple[list[Message], list[Any] | None]:
        """The messages of the prompt, and the tools that the chat template shows with them."""
        self.environment.warn_of_differences("tool")
        return list(messages), list(self.schemas) or None

    def observe(self, results: Sequence[Observation], completion: Completion, *, ended: bool) -> list[int]:
        """The ids of results, up to where the policy continues. `ended`: it ended its turn `completion` by a token."""
        messages: list[Message] = [
            {"role": "tool", "name": one.name, "content": one.text}
            | ({} if one.call_id is None else {"tool_call_id": one.call_id})
            for one in results
        ]
        return self.environment.chat_turns.after(messages, ended=ended)


class ReactProtocol(CallProtocol):
    """A message of the system explains tools and lines; results are `Observation:` lines in the policy's own turn."""

    stops = ("\nObservation",)

    def opening(self, messages: Sequence[Message]) -> tuple[list[Message], list[Any] | None]:
        explained = explain(self.schemas)
        if messages[0]["role"] == "system":
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{explained}"}
            return [first, *messages[1:]], None
        return [{"role": "system", "content": explained}, *messages], None

    def observe(self, results: Sequence[Observation], completion: Completion, *, ended: bool) -> list[int]:
        text = "\n".join(one.text for one in results)
        if ended:  # nothing of the same turn can follow its end
            return self.environment.chat_turns.after([{"role": "user", "content": f"Observation: {text}"}], ended=True)
        begun = "" if completion.stop in self.stops else self.stops[0]  # which the policy itself may have written
        return self.environment.observations.ids(f"{begun}: {text}\n")


def make_protocol(environment: Environment, call_format: str, tools: Mapping[str, BaseTool]) -> CallProtocol:
    kind = ReactProtocol if call_format == REACT else CallProtocol
    return kind(environment, environment.schemas_of(tools), call_format)


def explain(schemas: Sequence[Schema]) -> str:
    """The lines of ReAct, and the tools that may be called with them."""
    tools = []
    for schema in schemas:
        function = schema["function"]
        properties = function.get("parameters", {}).get("properties", {})
        arguments = ", ".join(f"{name} ({about.get('type', 'any')})" for name, about in properties.items())
        tools.append(f"- {function['name']}: {function.get('description', '')} Arguments: {arguments or 'none'}")
    names = ", ".join(schema["function"]["name"] for schema in schemas)
    return "\n".join(
        [
            "Work towards the answer step by step. You can call these tools:",
            *tools,
            "Write each step in these lines:",
            "Thought: what you know and what is missing",
            f"Action: the tool to call, one of {names}",
            "Action Input: its arguments, as a JSON object",
            "Then stop: the result comes as a line that begins with Observation. Take as many steps as you need. When "
            "you know the answer, write:",
            "Thought: why it is the answer",
            "Final Answer: the answer",
        ]
    )
