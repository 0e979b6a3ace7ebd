"""The turns of a chat in the terminal, and the commands that change them; knows nothing of models and terminals.

A line that starts with a slash and a known word is a command; `//text` says `/text` to the model.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from burnish.config.nearest import nearest
from burnish.data.chat import Message
from burnish.errors import DataError

COMMANDS = {
    "/help": "these lines",
    "/reset": "forget all turns and begin again; the system message stays",
    "/system": "TEXT: set the system message, also in the middle of a conversation; without TEXT: remove it",
    "/save": 'FILE: add the conversation to FILE, a line {"messages": […]} that `burnish sft` can learn from',
    "/exit": "leave, as Ctrl-D does",
}
COMMAND = re.compile(r"/[a-z]+")


@dataclass
class Conversation:
    """System message and turns so far."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    def messages(self, question: str | None = None) -> list[Message]:
        """All of it, with a further question at its end."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        last = [] if question is None else [{"role": "user", "content": question}]
        return [*first, *self.turns, *last]

    def add(self, question: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def save(self, file: str) -> None:
        """One line for the whole conversation, after what the file holds already."""
        path = Path(file).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as out:
                out.write(json.dumps({"messages": self.messages()}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({error.strerror or error}); name another file") from error


def split(line: str) -> tuple[str, str]:
    """A line as (command, its argument); the command is empty where the line is for the model."""
    word, _, rest = line.partition(" ")
    if line.startswith("//"):
        return "", line[1:]
    if not COMMAND.fullmatch(word):
        return "", line
    if word not in COMMANDS:
        near = nearest(word, COMMANDS)
        hint = f"did you mean {near}?" if near else "/help lists them"
        raise DataError(f"no such command: {word}; {hint} (`/{word}` says it to the model)")
    return word, rest.strip()


def obey(command: str, argument: str, conversation: Conversation) -> str:
    """Carry out a command; what to tell the user."""
    if command == "/reset":
        conversation.turns.clear()
        return "the conversation begins again"
    if command == "/system":
        conversation.system = argument or None
        return "the system message is set" if argument else "there is no system message now"
    if command == "/save":
        if not argument:
            raise DataError("/save needs a file: /save talk.jsonl")
        if not conversation.turns:
            raise DataError("/save: nothing has been said yet")
        conversation.save(argument)
        return f"{len(conversation.messages())} messages added to {argument}"
    return "\n".join(f"{name:<9}{what}" for name, what in COMMANDS.items())
