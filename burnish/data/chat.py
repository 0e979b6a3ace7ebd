"""Messages to token ids: what the policy is prompted with, and what SFT learns from.

A rollout prompt and the same turns inside an SFT conversation have the same ids, so a model is trained on what it sees.
A tokenizer without a chat template gets `PLAIN_TEMPLATE`.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from burnish.data.template import BadTemplate, ChatTemplate, chat_template
from burnish.errors import ConfigError, DataError, ModelError, NotAvailable, UserError
from burnish.literal import one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

Message = dict[str, Any]
T = TypeVar("T")

PLAIN_TEMPLATE = (
    "{{ plain_start }}"
    "{% for message in messages %}"
    "{{ message['role'] + ': ' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token or '' }}{% endif %}"
    "{{ '\\n\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)

# Set by the renderer itself; a user's value would break the contract of the method it reaches.
RESERVED_KWARGS = (
    *("tokenize", "add_generation_prompt", "continue_final_message", "conversation", "messages", "tools", "padding"),
    *("truncation", "max_length", "return_dict", "return_tensors", "return_assistant_tokens_mask", "tokenizer_kwargs"),
)

BATCH, CHARACTERS = 1024, 2**21  # texts tokenised at once, and their characters: some 240 bytes of memory for each
SHOWN = 400  # characters of what a template says


def to_messages(prompt: Any) -> list[Message]:
    """A prompt column's value as messages. A string is one user message; lists and numpy arrays hold messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if hasattr(prompt, "tolist"):  # numpy, as pandas returns nested parquet columns
        prompt = prompt.tolist()
    if not isinstance(prompt, list | tuple):
        raise DataError(f"expected a string or a list of messages, got {_shown(prompt)}")
    if not prompt:
        raise DataError("the list of messages is empty")
    return [_message(message, i) for i, message in enumerate(prompt)]


def without_nulls(value: Any) -> Any:
    """Nested values without the nulls that parquet fills in where objects of a column differ in their fields."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(inner) for inner in value]
    return value


def check_text(text: str) -> None:
    """Refuse half a surrogate pair: JSON can hold one, no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"the text has a lone surrogate ({half}); fix or drop the row") from None


def truncate(ids: Sequence[T], max_length: int, mode: str) -> list[T]:
    """At most `max_length` of `ids`. `left` drops from the front, `right` from the end, `middle` keeps both ends."""
    excess = len(ids) - max_length
    if excess <= 0:
        return list(ids)
    if mode == "error":
        raise DataError(f"{len(ids)} tokens, over the limit of {max_length}")
    cut = {"left": 0, "right": max_length, "middle": max_length // 2}[mode]
    return [*ids[:cut], *ids[cut + excess :]]


def special_ids(tokenizer: "PreTrainedTokenizerBase") -> frozenset[int]:
    """The ids of special tokens; some vocabularies mark their end-of-turn token so without giving it a role."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def special_texts(tokenizer: "PreTrainedTokenizerBase") -> set[str]:
    """What special tokens are written as."""
    special = special_ids(tokenizer)
    added = tokenizer.added_tokens_decoder.items()
    return {str(token.content) for number, token in added if number in special} | {*tokenizer.all_special_tokens}


class Marks:
    """Texts that control a model, such as its special tokens: where they are, and how to make them ordinary text."""

    def __init__(self, marks: Iterable[str]):
        ordered = sorted((mark for mark in marks if len(mark.strip()) > 1), key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def first(self, text: str) -> str | None:
        found = self._marks.search(text) if self._marks else None
        return found[0] if found else None

    def broken_up(self, text: str) -> str:
        """The text with a space after the first character of each mark."""
        while self._marks is not None and self._marks.search(text):
            text = self._marks.sub(lambda mark: f"{mark[0][0]} {mark[0][1:]}", text)
        return text


class ChatRenderer:
    """Messages to text and token ids; with `escape`, special tokens in messages and tools become ordinary text."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        escape: bool = False,
    ):
        self.tokenizer, self.escape = tokenizer, escape
        self.marks = Marks(special_texts(tokenizer))
        self.kwargs = dict(template_kwargs or {})
        for name in RESERVED_KWARGS:
            if name in self.kwargs:
                raise ConfigError(f"data.apply_chat_template_kwargs.{name} is set by burnish itself; remove it")
        self.plain = not tokenizer.chat_template and not self.kwargs.get("chat_template")
        if self.plain:
            begin = tokenizer.bos_token_id
            adds_begin = begin is not None and list(tokenizer("a")["input_ids"])[:1] == [begin]
            start = str(tokenizer.bos_token) if adds_begin else ""
            self.kwargs |= {"chat_template": PLAIN_TEMPLATE, "plain_start": start}
        self._special_ids = special_ids(tokenizer)
        # A tokenizer class of a folder's own code, which the user trusts, may render without a template.
        rendered_by = getattr(type(tokenizer), "apply_chat_template", None)
        self._renders_itself = not self.plain and "PreTrainedTokenizerBase" not in getattr(
            rendered_by, "__qualname__", ""
        )

    def text(
        self, messages: Sequence[Message], tools: list[Any] | None = None, *, generation_prompt: bool = True
    ) -> str:
        """The rendered text; with `generation_prompt` it ends where the assistant's next turn begins."""
        if self.plain and (tools or any(message.get("tool_calls") for message in messages)):
            raise NotAvailable(
                "tools with a tokenizer that has no chat template",
                "Use a chat model's tokenizer, or give data.apply_chat_template_kwargs.chat_template.",
            )
        if self.escape:
            messages, tools = _texts_mapped([list(messages), tools], self.marks.broken_up)
        given = {"tools": tools, "add_generation_prompt": generation_prompt, **self.kwargs}
        try:
            if self._renders_itself:
                rendered = str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, **given))
            else:
                if not all(isinstance(tool, dict) for tool in tools or ()):
                    raise DataError("a tool is no object")
                given.pop("chat_template", None)
                variables = {"documents": None, **self.tokenizer.special_tokens_map, **given}
                rendered = self.template(tools).render(messages, variables)
        except UserError:
            raise
        except BadTemplate as exc:
            raise self._bad_template(exc) from exc
        except Exception as exc:  # a template is a program of the model folder: whatever it raises is of its making
            roles = one_line(", ".join(message["role"] for message in messages))
            said = one_line(str(exc) or type(exc).__name__)
            raise DataError(
                f"the chat template cannot render messages with the roles {roles:.{SHOWN}}: {said:.{SHOWN}}"
            ) from exc
        check_text(rendered)
        return rendered

    def template(self, tools: list[Any] | None = None) -> ChatTemplate:
        """The compiled template: the tokenizer's, of several the one for conversations with or without tools."""
        try:
            source = self.tokenizer.get_chat_template(self.kwargs.get("chat_template"), tools)
            if not isinstance(source, str):
                raise BadTemplate(f"it is a {type(source).__name__}, expected text")
            return chat_template(source)
        except (BadTemplate, ValueError) as exc:  # ValueError: there are several, and none is called default
            raise self._bad_template(exc) from exc

    def _bad_template(self, problem: Exception) -> ModelError:
        where = f"of {self.tokenizer.name_or_path or 'the tokenizer'}"
        if "chat_template" in self.kwargs:
            where = "in data.apply_chat_template_kwargs.chat_template"
        return ModelError(
            f"the chat template {where}: {one_line(str(problem)):.{SHOWN}}. Correct it, or give another in "
            "data.apply_chat_template_kwargs.chat_template"
        )

    def prompt_ids(self, messages: Sequence[Message], tools: list[Any] | None = None) -> list[int]:
        return self.encode(self.text(messages, tools))

    def whole(self, messages: Sequence[Message], tools: list[Any] | None = None) -> list[int]:
        """Ids of a conversation with all that the template writes after the last turn: what a reward model reads."""
        return self.encode(self.text(messages, tools, generation_prompt=False))

    @cached_property
    def longest_token(self) -> int:
        """Characters that a token stands for at most: as the vocabulary writes them, which is no shorter."""
        return max(map(len, self.tokenizer.get_vocab()))

    def prompt_cut(self, messages: Sequence[Message], tools: list[Any] | None, limit: int, mode: str) -> list[int]:
        """`prompt_ids`, truncated. A text that is far too long is cut before it is tokenised, which takes memory."""
        text, most = self.text(messages, tools), limit * self.longest_token
        if len(text) > most and mode == "error":
            raise DataError(f"{len(text)} characters, over the limit of {limit} tokens of at most {self.longest_token}")
        if len(text) > 2 * most:  # twice, so that no token near the cut is kept
            text = "".join(truncate(text, 2 * most, mode))
        return truncate(self.encode(text), limit, mode)

    def token_counts(self, texts: Sequence[str], limit: int | None = None) -> list[int]:
        """Lengths of rendered texts in tokens; batched, so that fast tokenizers use all cores. A text that is over
        `limit` by its characters alone is not tokenised: its count is the lowest possible."""
        counts, waiting, size = [-(-len(text) // self.longest_token) for text in texts], list[int](), 0
        for i, text in enumerate(texts):
            if limit is None and len(text) > CHARACTERS:  # in pieces, which may have a few tokens more
                pieces = [text[k : k + CHARACTERS] for k in range(0, len(text), CHARACTERS)]
                counts[i] = sum(self.token_counts(pieces))
            elif limit is None or counts[i] <= limit:
                waiting.append(i)
                size += len(text)
            if waiting and (size > CHARACTERS or len(waiting) == BATCH or i == len(texts) - 1):
                some = [texts[k] for k in waiting]
                encoded = self.tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]
                for k, ids in zip(waiting, encoded, strict=True):
                    counts[k] = len(ids)
                waiting, size = [], 0
        return counts

    def conversation(self, messages: Sequence[Message], tools: list[Any] | None = None) -> tuple[list[int], list[int]]:
        """Ids of a whole conversation and a mask: 1 on the tokens an assistant has to produce, its turn's end included:
        what the render through that turn adds to the prompt before it. Turns after the last are left out."""
        if messages[0]["role"] == "assistant":
            raise DataError("the first message is from the assistant, so it answers nothing; start with a user message")
        turns = [k for k, message in enumerate(messages) if message["role"] == "assistant"]
        if not turns:
            raise DataError("no message is from the assistant, so there is nothing to learn; add the answer")
        text, ids, mask = "", list[int](), list[int]()
        for k in turns:
            prompt = self.text(messages[:k], tools)
            ids = self._extend(ids, text, prompt, k)
            mask += [0] * (len(ids) - len(mask))
            text = self.text(messages[: k + 1], tools, generation_prompt=False)
            ids = self._extend(ids, prompt, text, k)
            # Learnt through the end-of-turn token; not what the template writes after it (often a newline).
            turn = ids[len(mask) :]
            last = max((i for i, token in enumerate(turn) if token in self._special_ids), default=-1)
            learnt = last + 1 if last >= 0 and not str(self.tokenizer.decode(turn[last + 1 :])).strip() else len(turn)
            mask += [1] * learnt + [0] * (len(turn) - learnt)
        return ids, mask

    def _extend(self, ids: list[int], before: str, after: str, turn: int) -> list[int]:
        """Ids of `after`, which must begin with `before`, whose ids are `ids` and stay as they are."""
        if not after.startswith(before):
            raise DataError(
                f"the chat template renders earlier text differently once message {turn} follows (templates that strip "
                "the thinking of past turns do this), so no single token sequence matches what the model saw. "
                "Split the conversation into one example per assistant turn, or give a template that keeps past "
                "turns in data.apply_chat_template_kwargs.chat_template"
            )
        whole = self.encode(after)
        if whole[: len(ids)] == ids:
            return whole
        # A token spans the seam (e.g. two newlines become one). The model generates from the ids of `before`,
        # so those stay and only the addition is tokenised separately.
        return ids + self.encode(after[len(before) :])

    def encode(self, text: str) -> list[int]:
        # The template writes the special tokens; verbose=False: over-long prompts are handled here.
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


class SpecialTexts:
    """The rows of files that hold special tokens as text: a row from outside can end its turn and begin another."""

    def __init__(self, renderer: ChatRenderer):
        self.renderer, self.rows, self.first = renderer, 0, ""

    def find(self, messages: Sequence[Message]) -> str | None:
        """The first, and where it is; None where they are escaped."""
        for i, message in enumerate(() if self.renderer.escape else messages):
            if mark := self.renderer.marks.first(message["content"]):
                return f"message {i} ({message['role']:.40}) has the special token {mark} in its text"
        return None

    def add(self, messages: Sequence[Message], where: Callable[[], str]) -> None:
        if found := self.find(messages):
            self.rows += 1
            self.first = self.first or one_line(f"{where()}: {found}")

    def warn(self) -> None:
        if self.rows:
            log.warning(
                "%s, which the model reads as a control token (so in %d of the rows). Set "
                "data.escape_special_tokens=true to make it ordinary text, or clean the rows",
                self.first, self.rows,
            )  # fmt: skip


def _message(message: Any, position: int) -> Message:
    if not isinstance(message, Mapping):
        raise DataError(f"message {position} is {_shown(message)}, expected an object with role and content")
    # Parquet gives every message of a column the same fields and fills those a message does not have with null.
    fields = {key: without_nulls(value) for key, value in message.items() if value is not None}
    role = fields.get("role")
    if not isinstance(role, str) or not role:
        raise DataError(f"message {position} has no role (its fields: {', '.join(message) or 'none':.200})")
    named = f"message {position} ({one_line(role[:40])})"
    if calls := fields.get("tool_calls"):
        if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
            raise DataError(f"{named} has the tool_calls {_shown(calls)}, expected a list of objects")
        fields["tool_calls"] = [_tool_call(call) for call in calls]
        fields.setdefault("content", "")
    content = fields.get("content")
    if isinstance(content, list | tuple):
        content = "".join(_text_part(part, position) for part in content)
    if not isinstance(content, str):
        raise DataError(f"{named} has the content {_shown(content)}, expected text")
    return fields | {"content": content}


def _text_part(part: Any, position: int) -> str:
    """Multi-part content is joined where all parts are text; other parts need a model that reads them."""
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return part["text"]
    if kind in ("image", "video", "image_url", "video_url", "audio"):
        raise NotAvailable(f"{kind} parts in messages (message {position})", "Use text-only messages.")
    raise DataError(f"message {position} has the content part {_shown(part)}, expected text")


def _tool_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments stored as JSON text become an object: templates write objects, and would quote a string twice."""
    function = call.get("function", call)
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):  # no JSON, a number of too many digits, too deep: text, then
        return call
    parsed = {**function, "arguments": arguments}
    return {**call, "function": parsed} if "function" in call else parsed


def _texts_mapped(value: Any, function: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return function(value)
    if isinstance(value, Mapping):
        return {_texts_mapped(key, function): _texts_mapped(inner, function) for key, inner in value.items()}
    return [_texts_mapped(inner, function) for inner in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"a {type(value).__name__} ({text if len(text) <= 60 else text[:57] + '...'})"
