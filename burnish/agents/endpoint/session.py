"""One trajectory at the endpoint: its program's requests in, replies out, everything recorded.

What is wrong with a request is an `ApiError`, which the program reads. What is wrong with the run (the engine failed,
the chat template cannot continue) is set on `failed`, which the loop awaits next to the program.

The calls are a tree of conversations. A call whose messages begin with those of an earlier call and the exact reply to
it continues that conversation; any other begins a new one, also with replies that the policy never gave, since there
are no tokens for them. A trajectory is one sequence, so one path of the tree is trained: the one with the most calls,
among equals the last.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from burnish.agents.base import AgentLoopBase
from burnish.agents.endpoint.requests import ChatRequest, read_request
from burnish.agents.parsers import find_parser
from burnish.agents.server import Transcript
from burnish.data.chat import Message, to_messages, truncate
from burnish.errors import DataError
from burnish.openai_wire.answers import ChatAnswer, Choice, Token, usage
from burnish.openai_wire.fields import ApiError, bad, broken
from burnish.openai_wire.http import DONE, event
from burnish.openai_wire.requests import TOO_LONG


@dataclass(frozen=True, eq=False)
class AnsweredCall:
    """The conversation up to the end of the reply."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    transcript: Transcript
    has_ended: bool  # the reply's last token ended it

    @property
    def calls(self) -> int:
        return len(self.transcript.turns)

    @cached_property
    def said(self) -> list[tuple[Any, ...]]:
        return [_identity(message) for message in self.messages]


class ConversationTree:
    def __init__(self) -> None:
        self.turns: list[AnsweredCall] = []

    def before(self, messages: Sequence[Message], tools: list[dict[str, Any]]) -> AnsweredCall | None:
        """The call that one with these messages continues: the longest such conversation, the latest of several."""
        asked = [_identity(message) for message in messages]
        found = [
            turn
            for turn in self.turns
            if len(turn.said) < len(asked)
            and turn.tools == tools
            and turn.said == asked[: len(turn.said)]
            and all(message["role"] != "assistant" for message in messages[len(turn.messages) :])
        ]
        return max(reversed(found), key=lambda turn: len(turn.messages), default=None)

    @property
    def trained(self) -> AnsweredCall | None:
        """The end of the path that is trained; None if no call was answered."""
        return max(reversed(self.turns), key=lambda turn: turn.calls, default=None)

    @property
    def left_out(self) -> int:
        return len(self.turns) - (self.trained.calls if self.trained else 0)


def _identity(message: Message) -> tuple[Any, ...]:
    """What makes a message the same when it is sent back; clients add and drop empty fields."""
    calls = [
        (call.get("id"), call["function"]["name"], json.dumps(call["function"].get("arguments"), sort_keys=True))
        for call in message.get("tool_calls", ())
    ]
    return (message["role"], message["content"], calls, message.get("tool_call_id"), message.get("name"))


@dataclass
class ProgramReply:
    """One turn of the policy as the program reads it: its text, its tool calls, and the JSON of both."""

    request: ChatRequest
    prompt_ids: list[int]
    choice: Choice
    calls: list[dict[str, Any]]

    @property
    def message(self) -> Message:
        calls = {"tool_calls": self.calls} if self.calls else {}
        return to_messages([{"role": "assistant", "content": self.choice.whole.text, **calls}])[0]

    def whole(self) -> dict[str, Any]:
        answer = ChatAnswer(self.request.model, self.calls)
        return answer.whole([self.choice], usage([self.prompt_ids], [self.choice]))

    def events(self) -> Iterator[str]:
        """As server-sent events: the whole reply in one piece, since a turn is recorded before it is answered."""
        answer = ChatAnswer(self.request.model, self.calls)
        extra = {"usage": None} if self.request.include_usage else {}
        yield event(answer.first_chunk(0) | extra)
        yield event(answer.chunk(self.choice.whole) | extra)
        if self.request.include_usage:
            yield event(answer.usage_chunk(usage([self.prompt_ids], [self.choice])))
        yield DONE


class Session:
    def __init__(self, loop: AgentLoopBase, sampling_params: Mapping[str, Any], row: Mapping[str, Any]):
        self.conversations = ConversationTree()
        self.full: list[AnsweredCall] = []  # that could not be continued for want of room
        self.malformed = 0  # tool calls that could not be read
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loop = loop
        self._params, self._row = sampling_params, row
        self._running: set[asyncio.Task[Any]] = set()

    async def answer(self, body: Any) -> ProgramReply:
        """Answer one request; cancelled where the client or the trajectory leaves."""
        request = read_request(body, self._params, len(self._loop.tokenizer))
        if request.overruled:
            self._loop.environment.warn_once(
                "an agent program asks for %s; the run's sampling holds instead (rollout.temperature and its like, "
                "rollout.val_kwargs in validation), so that what is trained is what was sampled",
                ", ".join(request.overruled),
            )
        task = asyncio.ensure_future(self._turn(request))
        self._running.add(task)
        try:
            return await task
        except ApiError:
            raise
        except Exception as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise broken() from error
        finally:
            self._running.discard(task)

    def close(self) -> None:
        """End what still runs; nobody reads it any more."""
        for task in self._running:
            task.cancel()
        if not self.failed.cancel():
            self.failed.exception()  # asked for here at the latest, or asyncio complains

    async def _turn(self, request: ChatRequest) -> ProgramReply:
        transcript = self._continued(request) or self._begun(request)
        prompt_ids = transcript.prompt_ids + transcript.ids
        loop, server = self._loop, self._loop.server_manager
        # Ids of calls are the same in every run, for templates may write them into the next prompt.
        identity = f"{server.uid}_{server.sample}_{server.turn}"  # its turn is counted before it waits
        completion = await transcript.sample(self._params, **request.sampling)
        special_ids, stops = loop.environment.chat_turns.special_ids, request.sampling["stop"]
        choice = Choice(0, loop.tokenizer, special_ids, stops, request.log_probs)
        for token_id, log_prob in zip(completion.token_ids, completion.log_probs, strict=True):
            choice.take(Token(token_id, log_prob))
        choice.take(completion)
        reply = ProgramReply(request, prompt_ids, choice, [])
        if request.reads_calls:
            parser = find_parser(loop.environment.call_format(self._row))
            parsed = parser.parse(loop.text(completion, keep_end=parser.keeps_end), request.tools)
            self.malformed += len(parsed.malformed)
            for i, call in enumerate(parsed.calls):
                function = {"name": call.name, "arguments": call.arguments}
                made = {"id": call.call_id or f"call_{identity}_{i}", "type": "function", "function": function}
                reply.calls.append(made)
            if reply.calls:  # otherwise the program reads all that was written
                choice.whole.text, choice.whole.finish_reason = parsed.content, "tool_calls"
        messages = [*request.messages, reply.message]
        self.conversations.turns.append(AnsweredCall(messages, request.tools, transcript, loop.has_ended(completion)))
        return reply

    def _begun(self, request: ChatRequest) -> Transcript:
        data = self._loop.environment.settings.data
        try:
            ids = self._loop.chat.prompt_ids(self._harmless(request.messages), request.tools or None)
        except DataError as error:
            raise bad(str(error), param="messages") from error
        try:
            return self._loop.transcript(truncate(ids, data.start_limit, data.truncation))
        except DataError as error:
            earlier = " (its messages continue no earlier reply as it was given)" if self.conversations.turns else ""
            raise bad(
                f"the prompt{earlier}: {error}; raise {data.start_limit_key}, or send less",
                param="messages",
                code=TOO_LONG,
            ) from error

    def _continued(self, request: ChatRequest) -> Transcript | None:
        """The conversation that the messages continue, up to the start of its next reply; None if there is none."""
        turn = self.conversations.before(request.messages, request.tools)
        if turn is None:
            return None
        environment, new = self._loop.environment, request.messages[len(turn.messages) :]
        for message in new:
            environment.warn_of_differences(message["role"])
        try:
            ids = environment.chat_turns.after(self._harmless(new), ended=turn.has_ended)
        except DataError as error:
            raise bad(str(error), param="messages") from error
        before, transcript = turn.transcript, self._loop.transcript(turn.transcript.prompt_ids)
        # A copy: another call may continue the same conversation.
        transcript.ids, transcript.mask = list(before.ids), list(before.mask)
        transcript.log_probs, transcript.turns = list(before.log_probs), list(before.turns)
        if not transcript.observe(ids):
            self.full.append(turn)
            raise bad(
                f"the conversation has {len(turn.transcript.ids)} tokens after its first prompt, and with {len(ids)} "
                f"more there is no room for a reply; raise data.max_response_length ({TOO_LONG})",
                param="messages",
                code=TOO_LONG,
            )
        return transcript

    def _harmless(self, messages: Sequence[Message]) -> list[Message]:
        """Messages of tools come from outside, so they may neither end their message nor contain another."""
        harmless = self._loop.environment.observations.harmless
        return [m | {"content": harmless(m["content"])} if m["role"] == "tool" else m for m in messages]
