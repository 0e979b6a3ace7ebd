"""What a chat template writes between two turns of the assistant, as token ids: a trajectory is continued, never
rendered again. They are found by rendering a probe, a short conversation whose assistant says a unique word, followed
by the messages in between; what follows the word is the continuation.

Some templates render earlier turns differently once others follow, such as those that strip past thinking. Rollout and
training still see the same tokens, but a prompt rendered from all messages would differ. `differences` says how.
"""

import re
from collections.abc import Sequence
from functools import cached_property

from burnish.data.chat import ChatRenderer, Message, special_ids
from burnish.errors import ConfigError, DataError

QUESTION: Message = {"role": "user", "content": "question"}
WORD = "xyzzy"  # which no template contains
THOUGHT = "plugh"
ANSWER: Message = {"role": "assistant", "content": WORD}
THINKING: Message = {"role": "assistant", "content": f"<think>\n{THOUGHT}\n</think>\n\n{WORD}"}


class ChatTurns:
    def __init__(self, chat: ChatRenderer):
        self.chat = chat
        self.special_ids = special_ids(chat.tokenizer)
        self._roles: dict[str, str] = {}

    def after(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """The ids from the end of an assistant's turn to the start of its next, with `messages` between them. `ended`:
        the turn's last sampled token ended it; otherwise the template's own end of turn comes first."""
        known: list[Message] = []  # in roles of the template; those that become the user's in a row are one message
        for message in messages:
            role = self.role(message["role"])
            if role == message["role"]:
                known.append(message)
            elif known and known[-1]["role"] == role:
                known[-1] = {"role": role, "content": f"{known[-1]['content']}\n{message['content']}"}
            else:
                known.append({"role": role, "content": message["content"]})
        ids = self.chat.encode(self._text_after([QUESTION, ANSWER, *known]))
        end = self.end_of_turn if ended else []
        return ids[len(end) :] if ids[: len(end)] == end else ids

    @cached_property
    def end_of_turn(self) -> list[int]:
        """What the template ends an assistant's turn with, up to its first special token; [] where it has none."""
        ids = self.chat.encode(self.chat.text([QUESTION, ANSWER], generation_prompt=False).partition(WORD)[2])
        first = next((i for i, token in enumerate(ids) if token in self.special_ids), None)
        return [] if first is None else ids[: first + 1]

    def tags(self, role: str) -> set[str]:
        """Tags that the template puts around the content of such a message, which that content must not contain."""
        try:
            text = self._text_after([QUESTION, ANSWER, {"role": role, "content": "reply"}])
        except DataError:
            return set()
        return set(re.findall(r"</?[\w|]+>", text))

    def role(self, role: str) -> str:
        """The role itself, or `user` if the template has no such messages; ConfigError if it has none of the user."""
        if role not in self._roles:
            try:
                text = self.chat.text([QUESTION, ANSWER, {"role": role, "content": "reply"}])
                problem = "" if "reply" in text.partition(WORD)[2] else "it drops or rewrites turns"
            except DataError as error:
                problem = str(error)
            if problem and role == "user":
                raise ConfigError(
                    f"the chat template of this tokenizer cannot continue a conversation after the assistant's turn "
                    f"({problem}); give another in data.apply_chat_template_kwargs.chat_template"
                )
            self._roles[role] = "user" if problem else role
        return self._roles[role]

    def differences(self, role: str) -> list[str]:
        """How a conversation rendered as a whole differs from the continued one, in words; [] if it does not."""
        reply: Message = {"role": self.role(role), "content": "reply"}
        start, found = self.chat.text([QUESTION]), []
        if not self.end_of_turn:
            found.append("it has no end of turn, so the token that the policy ends its turn with comes besides")
        if self.role(role) != role:
            found.append(f"it knows no messages of the role {role}, so they come as messages of the user")
        fresh = self.chat.text([QUESTION, ANSWER, reply])
        if not fresh.startswith(start) or not fresh[len(start) :].lstrip(" ").startswith(WORD):
            pairs = zip(start, fresh, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(start), len(fresh)))
            one, other = (repr(text[same : same + 40]) if text[same:] else "nothing" for text in (start, fresh))
            found.append(
                "it begins an earlier turn of the assistant otherwise than the one that is to be written: "
                f"{one} against {other}"
            )
        elif THOUGHT not in self.chat.text([QUESTION, THINKING, reply]):
            found.append("it leaves the thinking of earlier turns out, which a trajectory keeps as it was sampled")
        return found

    def _text_after(self, messages: Sequence[Message]) -> str:
        return self.chat.text(messages).partition(WORD)[2]
