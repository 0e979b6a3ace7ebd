"""Preference pairs: two answers to one prompt, of which people chose one (the forms of columns: docs/data-make.md).
Text that begins like a dialogue is read as one. Both conversations must be the same up to the answer."""

import re
from itertools import pairwise
from typing import Any

from burnish.data.chat import Message, to_messages
from burnish.data.files import Row
from burnish.data.sources import Hub
from burnish.data.tasks.task import FileTask, InputColumn, LeftOut, Options, Record, is_filled, kept
from burnish.errors import DataError

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
    sides = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    return {"data_source": options["data_source"], **sides, "extra_info": {"turns": len(prompt)} | more}


def _prompt(record: Record) -> list[Message]:
    """The prompt column: messages, text, or a dialogue, which may break off where the answer begins."""
    if not _is_dialogue(record["prompt"]):
        return _messages(record, "prompt")
    messages = _dialogue(record["prompt"])
    if messages[-1] == {"role": "assistant", "content": ""}:
        messages.pop()
    if not messages or messages[-1]["role"] != "user":
        raise LeftOut("the last turn of 'prompt' is not the user's")
    return messages


def _side(record: Record, name: str, given: list[Message] | None) -> tuple[list[Message], str]:
    if not is_filled(record, name):
        raise LeftOut(f"'{name}' is empty")
    value = record[name]
    if given is not None and isinstance(value, str) and not _is_dialogue(value):
        if _TURN.search(value):
            raise LeftOut(f"'{name}' is an answer with further turns behind it")
        return given, value.strip()
    *before, answer = _dialogue(value) if isinstance(value, str) else _messages(record, name)
    if answer["role"] != "assistant":
        raise LeftOut(f"the last turn of '{name}' is not the assistant's")
    if answer.get("tool_calls"):
        raise LeftOut(f"the answer of '{name}' calls tools")
    if not answer["content"].strip():
        raise LeftOut(f"the answer of '{name}' is empty")
    bare, wanted = ([m | {"content": m["content"].strip()} for m in ms] for ms in (before, given or []))
    if given is not None and before and bare != wanted:
        raise LeftOut(f"'{name}' does not start with the prompt")
    return given if given is not None else before, answer["content"].strip()


def _is_dialogue(value: Any) -> bool:
    return isinstance(value, str) and _TURN.match(value.lstrip()) is not None


def _dialogue(text: str) -> list[Message]:
    """Turns in text, begun by `Human:` and `Assistant:`; an answer alone may have its `Assistant:` too."""
    lead, *turns = _TURN.split(text.lstrip())
    if not turns or lead:
        raise LeftOut("a dialogue does not start with Human: or Assistant:")
    messages = [
        {"role": _ROLES[who], "content": said.strip()} for who, said in zip(turns[::2], turns[1::2], strict=True)
    ]
    roles = [message["role"] for message in messages]
    if (roles[0] != "user" and len(roles) > 1) or any(one == following for one, following in pairwise(roles)):
        raise LeftOut("turns of a dialogue do not alternate, user first")
    if any(not message["content"] for message in messages[:-1]):
        raise LeftOut("a turn of a dialogue is empty")
    return messages


def _messages(record: Record, name: str) -> list[Message]:
    try:
        return to_messages(record[name])
    except DataError as exc:
        raise DataError(f"column '{name}': {exc}") from exc


TASK = FileTask(
    about="Pairs for a reward model: the same prompt, an answer that was chosen and one that was rejected.",
    hub=Hub("Anthropic/hh-rlhf", "default"),
    reads=(
        InputColumn(("chosen",), "the better answer, or a conversation that ends with it"),
        InputColumn(("rejected",), "the worse one"),
        InputColumn(("prompt",), "text or messages, where the answers do not hold it", required=False),
    ),
    data_source="Anthropic/hh-rlhf",
    row=row,
    example="--train pairs.jsonl.gz --test-size 200",
)
