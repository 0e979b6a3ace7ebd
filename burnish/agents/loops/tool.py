"""`tool_agent`, `react_agent`: the policy calls tools and continues with their results until it answers without a call.

The calls of a turn run at the same time; mistakes of the policy and calls beyond a limit are answered with the reason,
and counted. A turn without a call ends the trajectory, unless the row names an interaction, which then answers as the
user would, until it is done. The loop also ends at the limits of turns, and where a result does not fit any more
(truncated). A tool that fails, hangs or breaks its contract is a ToolFailure.

Rewards: tools and interactions give one to each turn, and tools one to the trajectory, which counts for its last turn.
`multi_turn.rewards` chooses what is trained; reward functions find them in `extra_info`.

A policy calls tools by the messages of its chat template, or by ReAct's lines of text; its `CallProtocol` decides what
the prompt is, where a turn stops, which calls it makes, and how results are shown.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from burnish.agents.base import AgentLoopBase, AgentLoopOutput
from burnish.agents.environment import Environment
from burnish.agents.interactions.session import InteractionSession
from burnish.agents.parsers import Parsed, Schema, ToolCall, find_parser
from burnish.agents.server import Transcript
from burnish.agents.tools.base import BaseTool
from burnish.agents.tools.session import ToolSession
from burnish.data.chat import Message
from burnish.rollout.base import Completion

REACT = "react"
STEPS = """\
Write each step in these lines:
Thought: what you know and what is missing
Action: the tool to call, one of {}
Action Input: its arguments, as a JSON object
Then stop: the result comes as a line that begins with Observation. Take as many steps as you need. When you know the \
answer, write:
Thought: why it is the answer
Final Answer: the answer"""


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

    def observe(self, results: Sequence[Message], completion: Completion, *, ended: bool) -> list[int]:
        """The ids of results, up to where the policy continues. `ended`: it ended its turn `completion` by a token."""
        return self.environment.chat_turns.after(results, ended=ended)


class ReactProtocol(CallProtocol):
    """A message of the system explains tools and lines; results are `Observation:` lines in the policy's own turn."""

    stops = ("\nObservation",)

    def opening(self, messages: Sequence[Message]) -> tuple[list[Message], list[Any] | None]:
        explained = explain(self.schemas)
        if messages[0]["role"] == "system":
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{explained}"}
            return [first, *messages[1:]], None
        return [{"role": "system", "content": explained}, *messages], None

    def observe(self, results: Sequence[Message], completion: Completion, *, ended: bool) -> list[int]:
        text = "\n".join(one["content"] for one in results)
        if ended:  # nothing of the same turn can follow its end
            return self.environment.chat_turns.after([{"role": "user", "content": f"Observation: {text}"}], ended=True)
        begun = "" if completion.stop in self.stops else self.stops[0]  # which the policy itself may have written
        return self.environment.observations.ids(f"{begun}: {text}\n")


def make_protocol(environment: Environment, call_format: str, tools: Mapping[str, BaseTool]) -> CallProtocol:
    kind = ReactProtocol if call_format == REACT else CallProtocol
    return kind(environment, environment.schemas_of(tools), call_format)


def explain(schemas: Sequence[Schema]) -> str:
    tools = []
    for schema in schemas:
        function = schema["function"]
        properties = function.get("parameters", {}).get("properties", {})
        arguments = ", ".join(f"{name} ({about.get('type', 'any')})" for name, about in properties.items())
        tools.append(f"- {function['name']}: {function.get('description', '')} Arguments: {arguments or 'none'}")
    names = ", ".join(schema["function"]["name"] for schema in schemas)
    return "\n".join(["Work towards the answer step by step. You can call these tools:", *tools, STEPS.format(names)])


class ToolAgentLoop(AgentLoopBase):
    call_format: str | None = None  # of the loop itself, before that of the row and of the configuration

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        limits = self.limits = self.environment.limits_of(row)
        tools = self.environment.tools_of(row)
        protocol = make_protocol(self.environment, self.call_format or self.environment.call_format(row), tools)
        messages, shown = protocol.opening(row["messages"])
        self.counts: defaultdict[str, float] = defaultdict(float)
        self.turn_scores: list[float] = []
        server = self.server_manager
        instance = f"{server.namespace}/{server.uid}.{server.sample}"  # validation may run during training
        transcript = self.transcript(self.prompt_ids(messages, shown))
        session, user = ToolSession(tools, instance, row.get("tools_kwargs") or {}, limits.tool_timeout), None
        scores = {}
        async with AsyncExitStack() as ends:
            ends.push_async_callback(session.close)
            if (interaction := self.environment.interaction_of(row)) is not None:
                self.environment.warn_of_differences("user")
                user = InteractionSession(interaction, row["interaction_kwargs"], instance, limits.tool_timeout)
                ends.push_async_callback(user.close)
                await user.start()
            await self.converse(transcript, protocol, session, user, list(messages), sampling_params)
            scores["tool_score"] = tool_score = await session.trajectory_reward()
            if user is not None:
                scores["interaction_score"] = await user.score()
        *before, last = self.turn_scores
        return transcript.output(
            num_turns=len(transcript.turns) + int(self.counts["observations"]) + 1,
            turn_rewards=None if limits.rewards == "trajectory" else [*before, last + tool_score],
            add_score=limits.rewards == "both",
            metrics={"num_tool_calls": int(self.counts["calls"]), **self.metrics()},
            extra_fields={"turn_scores": self.turn_scores, **scores},
        )

    async def converse(
        self,
        transcript: Transcript,
        protocol: CallProtocol,
        session: ToolSession,
        user: InteractionSession | None,
        messages: list[Message],
        sampling_params: dict[str, Any],
    ) -> None:
        limits = self.limits
        stops = (*sampling_params.get("stop", ()), *protocol.stops)
        while True:
            completion = await transcript.sample(sampling_params, stop=stops)
            self.turn_scores.append(0.0)
            text = self.text(completion, keep_end=protocol.parser.keeps_end)
            messages.append({"role": "assistant", "content": text})
            if completion.finish_reason == "length":
                return
            is_last = len(transcript.turns) == limits.max_assistant_turns
            parsed = protocol.parser.parse(text, protocol.schemas)
            if parsed.calls or parsed.malformed:
                if is_last:
                    return
                results = await self.answer(parsed, session)
                messages += results
                observation = protocol.observe(results, completion, ended=self.has_ended(completion))
            elif user is not None:
                reply = await self.reply(user, messages)  # also after the last turn, which earns its score too
                if reply is None or is_last or self.counts["user_turns"] == limits.max_user_turns:
                    return
                self.counts["user_turns"] += 1
                messages.append(reply)
                observation = self.environment.chat_turns.after([reply], ended=self.has_ended(completion))
            else:
                return
            if not transcript.observe(observation):
                return
            self.counts["observations"] += 1

    async def answer(self, parsed: Parsed, session: ToolSession) -> list[Message]:
        """Results of the calls, which run at the same time, in their order; then the reasons of malformed ones."""
        limits = self.limits
        left = len(parsed.calls) if limits.max_tool_calls is None else limits.max_tool_calls - int(self.counts["calls"])
        allowed = max(min(left, limits.max_parallel_calls), 0)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.call(call, session)) for call in parsed.calls[:allowed]]
        except ExceptionGroup as failures:  # where one fails, the others are ended before it rises
            raise failures.exceptions[0] from None
        results = [task.result() for task in tasks]
        for call in parsed.calls[allowed:]:
            self.counts["refused"] += 1
            most = f"{limits.max_parallel_calls} in one turn" if allowed < left else f"{limits.max_tool_calls} in all"
            results.append(self.observation(call, f"Error: this call was not run: at most {most}."))
        self.counts["malformed"] += len(parsed.malformed)
        for malformed in parsed.malformed[: limits.max_parallel_calls]:
            results.append({"role": "tool", "name": "error", "content": self.shown(f"Error: {malformed.reason}")})
        return results

    async def call(self, call: ToolCall, session: ToolSession) -> Message:
        self.counts["calls"] += 1
        result = await session.call(call)
        self.counts[result.kind] += 1
        self.turn_scores[-1] += result.reward
        self.counts["seconds"] += result.seconds
        for name, value in result.metrics.items():
            self.counts[f"{result.name}/{name}"] += value
        return self.observation(call, self.shown(result.text))

    def observation(self, call: ToolCall, text: str) -> Message:
        """The result of a call; its name and id were written by the policy."""
        harmless = self.environment.observations.harmless
        identity = {} if call.call_id is None else {"tool_call_id": harmless(call.call_id)}
        return {"role": "tool", "name": harmless(call.name), "content": text, **identity}

    def shown(self, text: str) -> str:
        """Text of a tool as the policy may read it: harmless, and not too long."""
        limits = self.limits
        side: Any = limits.tool_response_truncate_side
        cut, was_cut = self.environment.observations.cut(text, limits.max_tool_response_length, side)
        self.counts["cut"] += was_cut
        return cut

    async def reply(self, user: InteractionSession, messages: list[Message]) -> Message | None:
        turn = await user.respond(list(messages))
        self.turn_scores[-1] += turn.score
        for name, value in turn.data.items():
            if isinstance(value, int | float):
                self.counts[f"interaction/{name}"] += value
        text, _ = self.environment.observations.cut(turn.text, self.environment.settings.data.response_limit, "right")
        return None if turn.done else {"role": "user", "content": text}

    def metrics(self) -> dict[str, float]:
        """Counts, averaged over the trajectories of a step; metrics of tools and interactions are under their names."""
        always = ("calls", "seconds", "unknown_tool", "bad_arguments", "error", "malformed", "refused", "cut")
        own = [name for name in self.counts if "/" in name]
        return {f"tools/{name}": self.counts[name] for name in (*always, *own)}


class ReactAgentLoop(ToolAgentLoop):
    """Thought, Action, Action Input, Observation, Final Answer: for models whose template has no tools."""

    call_format = REACT
