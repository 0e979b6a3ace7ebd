"""One trajectory at the endpoint: its program's requests in, replies out, everything recorded.

`answer` consumes the JSON of a request and returns a `ProgramReply`; it waits for the engine. What is wrong with a
request is an `ApiError`, which the program reads. What is wrong with the run (the engine failed, the chat template
cannot continue) is not the program's to handle: it is set on `failed`, which the loop awaits next to the program.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.base import AgentLoopBase
from burnish.agents.endpoint.conversations import AnsweredCall, ConversationTree
from burnish.agents.endpoint.replies import ProgramReply, read_reply
from burnish.agents.endpoint.requests import ChatRequest, read_request
from burnish.agents.parsers import find_parser
from burnish.agents.transcript import Transcript
from burnish.data.chat import Message, truncate
from burnish.errors import DataError
from burnish.openai_wire.answers import Choice
from burnish.openai_wire.fields import ApiError, bad, broken
from burnish.openai_wire.requests import TOO_LONG

log = logging.getLogger(__name__)
_warned: set[str] = set()


class Session:
    """What one program may ask of the policy, while it runs."""

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
            warn_once(
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
        identity = f"{server.uid}_{server.sample}_{server.turn}"  # its turn is counted before it waits
        completion = await transcript.sample(self._params, **request.sampling)
        choice = Choice(0, loop.tokenizer, loop.environment.chat_turns.special_ids, request.stops, request.log_probs)
        parser = None
        if request.reads_calls:
            parser = find_parser(loop.environment.call_format(self._row))
        text = loop.text(completion, keep_end=parser is not None and parser.keeps_end)
        reply = read_reply(request, prompt_ids, completion, choice, parser, text, identity)
        self.malformed += reply.malformed
        messages = [*request.messages, reply.message]
        self.conversations.turns.append(AnsweredCall(messages, request.tools, transcript, loop.has_ended(completion)))
        return reply

    def _begun(self, request: ChatRequest) -> Transcript:
        """A new conversation: the rendered messages are its prompt."""
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


def warn_once(message: str, *values: Any) -> None:
    """Warn, but not for each trajectory."""
    if message not in _warned:
        _warned.add(message)
        log.warning(message, *values)
