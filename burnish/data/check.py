"""One pass over the rows of a file: what is in them, and all that is wrong with them. A bad row does not stop it.

A `Judge` knows what training would refuse and scores reference answers (`rewards/reference.py`).
Two prompts are the same when their messages have the same roles and, once white space is collapsed, the same contents.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from burnish.data.chat import CHARACTERS, ChatRenderer, Message, SpecialTexts, check_text
from burnish.data.dataset import NO_SOURCE, complete_row, find_prompt_key, refuse_media
from burnish.data.examples import messages_of, tools_of
from burnish.data.files import DataFile, Row, lookup
from burnish.data.report import PER_RESPONSE, FileReport, Lengths
from burnish.errors import DataError, ModelError, UserError

MEDIA = ("images", "videos")


class Judge(Protocol):
    """Returns (finding, text) about completed rows, or None. `score` gets those for which `inspect` returns None."""

    def inspect(self, row: Row) -> tuple[str, str] | None: ...

    def score(self, rows: Sequence[Row]) -> Sequence[tuple[str, str] | None]: ...


@dataclass(frozen=True)
class CheckOptions:
    """What the user asked for; `max_length` is that of prompts, of whole conversations in SFT files."""

    prompt_key: str = "prompt"
    reward_fn_key: str = "data_source"
    max_length: int | None = None


def check_file(
    table: DataFile,
    asked: CheckOptions,
    judge: Judge,
    renderer: ChatRenderer | None = None,
    on_rows: Callable[[int], None] = lambda count: None,
) -> FileReport:
    """The report on a file. Lengths are in tokens as training renders them, or without a `renderer` in characters of
    the messages' contents; `on_rows` is called with the number of rows done since the last call."""
    check = _FileCheck(FileReport(table.path, kind_of(table, asked)), asked, judge, renderer)
    for batch in table.batches():
        for row in batch:
            check.add(row)
        check.finish_batch()
        on_rows(len(batch))
    for text, number in check.report.columns.mixtures():
        check.report.note("mixed_types", number, text)
    return check.report


def kind_of(table: DataFile, asked: CheckOptions) -> str:
    names = dict.fromkeys(table.columns, True)
    if asked.reward_fn_key != CheckOptions.reward_fn_key:
        table.require_column(asked.reward_fn_key, "Name the one with the data sources in --reward-fn-key")
    if "chosen" in names and "rejected" in names:
        return "pairs"
    if find_prompt_key(names, asked.prompt_key) is None:
        if "messages" in names and asked.prompt_key == CheckOptions.prompt_key:
            return "conversations"
        table.require_column(asked.prompt_key, "Name the one with the prompts in --prompt-key")
    return "responses" if "responses" in names else "prompts"


class _FileCheck:
    """The state of one pass over a file. Texts to measure and rows to score wait for the end of their batch."""

    def __init__(self, report: FileReport, asked: CheckOptions, judge: Judge, renderer: ChatRenderer | None):
        self.report, self.asked, self.judge, self.renderer = report, asked, judge, renderer
        self.unit = "characters" if renderer is None else "tokens"
        self._examine: Callable[[int, Row], None] = {
            "prompts": self._prompt,
            "responses": self._responses,
            "conversations": self._conversation,
            "pairs": self._pair,
        }[report.kind]
        self._special = SpecialTexts(renderer) if renderer else None
        self._texts: dict[str, list[tuple[int, str]]] = {}
        self._to_score: list[tuple[int, Row]] = []

    def add(self, row: Row) -> None:
        report, number = self.report, self.report.rows
        report.columns.add(row)
        source = lookup(row, self.asked.reward_fn_key)
        report.sources[NO_SOURCE if source is None else str(source)] += 1
        try:
            self._examine(number, row)
        except ModelError:  # a chat template that renders nothing: every row would pay for it
            raise
        except UserError as error:
            report.note("refused", number, str(error))

    def finish_batch(self) -> None:
        for name, texts in self._texts.items():
            plain = [text for _, text in texts]
            counts = (
                self.renderer.token_counts(plain, self.asked.max_length)
                if self.renderer
                else [len(text) for text in plain]
            )
            for (number, _), count in zip(texts, counts, strict=True):
                self._length(name, number, count)
        remarks = self.judge.score([row for _, row in self._to_score])
        for (number, _), remark in zip(self._to_score, remarks, strict=True):
            self.report.scored += remark is None or remark[0] != "not_checked"
            if remark:
                self.report.note(remark[0], number, remark[1])
        self._texts, self._to_score = {}, []

    # One function per kind of rows. A UserError of theirs is one that training would raise.

    def _prompt(self, number: int, row: Row) -> None:
        refuse_media(row, MEDIA, "in this version")
        keys = {"prompt_key": self.asked.prompt_key, "reward_fn_key": self.asked.reward_fn_key}
        full = complete_row(row, position=number, **keys)
        self._count_messages(number, full["raw_prompt"])
        self._seen(number, full["raw_prompt"])
        self._measure_prompt(number, full["raw_prompt"])
        truth, worked = full["reward_model"].get("ground_truth"), full["extra_info"].get("answer")
        for name, value in (("reward_model.ground_truth", truth), ("extra_info.answer", worked)):
            if (isinstance(value, str) and not value.strip()) or value == []:
                self.report.note("empty_answer", number, f"{name} is empty")
        if remark := self.judge.inspect(full):
            self.report.note(remark[0], number, remark[1])
        else:
            self._to_score.append((number, full))

    def _responses(self, number: int, row: Row) -> None:
        given = row.get("responses")
        responses = [given] if isinstance(given, str) else given
        if not isinstance(responses, list) or not all(isinstance(text, str) for text in responses):
            raise DataError(f"field 'responses' is {given!r:.60}, expected a text or a list of texts")
        for name in PER_RESPONSE:
            values = row.get(name)
            if isinstance(values, list) and len(values) != len(responses):
                raise DataError(f"field '{name}' has {len(values)} entries for {len(responses)} responses")
        self._prompt(number, row)
        self.report.responses[len(responses)] += 1
        reasons = row.get("finish_reasons")
        self.report.finish_reasons.update(map(str, reasons if isinstance(reasons, list) else []))
        for i, text in enumerate(responses):
            self._measure("response", number, text)
            if not text.strip():
                self.report.note("empty_response", number, f"response {i}")

    def _conversation(self, number: int, row: Row) -> None:
        messages = messages_of(row, "messages")
        roles = [message["role"] for message in messages]
        if roles[0] == "assistant" or "assistant" not in roles:
            what = "the first message is" if roles[0] == "assistant" else "no message is"
            raise DataError(f"field 'messages': {what} from the assistant; a conversation is a question and an answer")
        self._count_messages(number, messages)
        self._seen(number, messages[: roles.index("assistant")])
        for i, message in enumerate(messages):
            if message["role"] == "assistant" and not message["content"].strip() and not message.get("tool_calls"):
                self.report.note("empty_answer", number, f"message {i}, from the assistant, is empty")
        text = "".join(message["content"] for message in messages)
        check_text(text)
        tools = tools_of(row)
        if self.renderer and len(text) > CHARACTERS:
            self._length("conversation", number, *self.renderer.token_counts([text]))
        else:
            length = len(self.renderer.conversation(messages, tools)[0]) if self.renderer else len(text)
            self._length("conversation", number, length)

    def _pair(self, number: int, row: Row) -> None:
        sides: dict[str, list[Message]] = {}
        for name in ("chosen", "rejected"):
            is_text = isinstance(row.get(name), str)
            sides[name] = [{"role": "assistant", "content": row[name]}] if is_text else messages_of(row, name)
        key = find_prompt_key(row, self.asked.prompt_key)
        if key is not None:
            prompt = messages_of(row, key)
            self._count_messages(number, prompt)
            self._seen(number, prompt)
            self._measure_prompt(number, prompt)
        else:  # each side is a whole dialogue: messages, of which the last is the answer, or one text
            self._seen(number, sides["chosen"][:-1] or sides["chosen"])
        texts = {name: "\n".join(message["content"] for message in side) for name, side in sides.items()}
        self._find_special(number, [*sides["chosen"], *sides["rejected"]])
        for name, text in texts.items():
            self._measure(name, number, text)
            if not sides[name][-1]["content"].strip():
                self.report.note("empty_answer", number, f"{name} is empty")
        if texts["chosen"] == texts["rejected"]:
            self.report.note("equal_sides", number, "chosen and rejected are the same")

    def _find_special(self, number: int, messages: Sequence[Message]) -> None:
        if self._special and (found := self._special.find(messages)):
            self.report.note("special_tokens", number, found)

    def _count_messages(self, number: int, messages: Sequence[Message]) -> None:
        self._find_special(number, messages)
        self.report.roles.update(message["role"] for message in messages)
        self.report.turns[len(messages)] += 1

    def _seen(self, number: int, prompt: Sequence[Message]) -> None:
        if not any(message["content"].strip() for message in prompt if message["role"] != "system"):
            self.report.note("empty_prompt", number, "the prompt has no text")
        parts = [[m["role"], " ".join(m["content"].split()), m.get("tool_calls")] for m in prompt]
        digest = hashlib.blake2b(json.dumps(parts, default=str).encode(), digest_size=16).digest()
        first = self.report.first_rows.setdefault(digest, number)
        if first != number:
            self.report.note("duplicate", number, f"the prompt of row {first}")

    def _measure_prompt(self, number: int, messages: Sequence[Message]) -> None:
        plain = "".join(message["content"] for message in messages)
        self._measure("prompt", number, self.renderer.text(messages) if self.renderer else plain)

    def _measure(self, name: str, number: int, text: str) -> None:
        check_text(text)
        self._texts.setdefault(name, []).append((number, text))

    def _length(self, name: str, number: int, value: int) -> None:
        self.report.lengths.setdefault(name, Lengths(self.unit)).add(number, value)
        limit = self.asked.max_length
        if limit is not None and value > limit and name in ("prompt", "conversation"):
            self.report.note("over_long", number, f"{value} {self.unit}")
