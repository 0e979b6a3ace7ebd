"""Preference pairs: two answers to one prompt, of which people chose one.

Reads three forms and hands on one: `prompt` (messages), `chosen` and `rejected` (text).

| columns | form |
|---|---|
| chosen, rejected | dialogues as text, turns begun by an empty line and `Human:` or `Assistant:` (Anthropic HH) |
| chosen, rejected | conversations as messages, the answer last |
| prompt, chosen, rejected | prompt as text, dialogue or messages; answers as text, or conversations starting with it |

Both conversations must be the same up to the answer. Pairs that are not, that do not parse, or whose answers are equal
are left out, each counted with its reason.
"""

import re
from itertools import pairwise
from typing import Any

from burnish.data.chat import to_messages
from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks.task import Column, FileTask, LeftOut, Options, Record, is_filled, kept
from burnish.errors import DataError

Message = dict[str, Any]
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def row(record: Record, options: Options) -> Row:
    given = _prompt(record) if is_filled(record, "prompt") else None
    (prompt, chosen), (other, rejected) = (_side(record, name, given) for name in ("chosen", "rejected"))
    if prompt != other:
        raise LeftOut("chosen and rejected do not share their prompt")
    if not prompt:
        raise LeftOut("there is no prompt before the answers")
    if chosen == rejected:
        raise LeftOut("chosen and rejected are equal")
    more = kept(record, "score_chosen", "score_rejected", "prompt_id")
    return {
        "data_source": options["data_source"],
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "extra_info": {"turns": len(prompt)} | more,
    }


def _prompt(record: Record) -> list[Message]:
    """The prompt column: messages, text, or a dialogue that breaks off where the answer begins."""
    text = record["prompt"]
    if isinstance(text, str) and _TURN.match(text) and text.rstrip().endswith("\n\nAssistant:"):
        return _dialogue(text)[:-1]
    return _messages(record, "prompt")


def _side(record: Record, name: str, given: list[Message] | None) -> tuple[list[Message], str]:
    """One conversation as its prompt and its answer."""
    if not is_filled(record, name):
        raise LeftOut(f"'{name}' is empty")
    if given is not None and isinstance(record[name], str):
        return given, record[name].strip()
    messages = _dialogue(record[name]) if isinstance(record[name], str) else _messages(record, name)
    if messages[-1]["role"] != "assistant":
        raise LeftOut(f"the last turn of '{name}' is not the assistant's")
    if not messages[-1]["content"].strip():
        raise LeftOut(f"the answer of '{name}' is empty")
    before = messages[:-1]
    if given is not None and before and before != given:
        raise LeftOut(f"'{name}' does not start with the prompt")
    return given if given is not None else before, messages[-1]["content"].strip()


def _dialogue(text: str) -> list[Message]:
    """Turns in text, begun by `Human:` and `Assistant:`."""
    lead, *turns = _TURN.split(text)
    if not turns or lead.strip():
        raise LeftOut("a dialogue does not start with Human: or Assistant:")
    messages = [
        {"role": _ROLES[who], "content": said.strip()} for who, said in zip(turns[::2], turns[1::2], strict=True)
    ]
    roles = [message["role"] for message in messages]
    if roles[0] != "user" or any(one == following for one, following in pairwise(roles)):
        raise LeftOut("turns of a dialogue do not alternate, user first")
    if any(not message["content"] for message in messages[:-1]):
        raise LeftOut("a turn of a dialogue is empty")
    return messages


def _messages(record: Record, name: str) -> list[Message]:
    """A column of messages (or, for a prompt, text) with role and content alone."""
    try:
        messages = to_messages(record[name])
    except DataError as exc:
        raise DataError(f"column '{name}': {exc}") from exc
    return [{"role": message["role"], "content": message["content"]} for message in messages]


TASK = FileTask(
    about="Pairs for a reward model: the same prompt, an answer that was chosen and one that was rejected.",
    hub=Hub("Anthropic/hh-rlhf", "default"),
    reads=(
        Column(("chosen",), "the better answer, or a conversation that ends with it"),
        Column(("rejected",), "the worse one"),
        Column(("prompt",), "text or messages, where the answers do not hold it", required=False),
    ),
    data_source="Anthropic/hh-rlhf",
    row=row,
    example="--train pairs.jsonl.gz --test-size 200",
)
