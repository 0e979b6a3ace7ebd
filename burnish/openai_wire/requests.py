"""Fields of a request that both servers read, and the tables of those that they refuse: every number has a range, every
list a length, and what is not supported is refused by name, never ignored.
"""

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from burnish.data.chat import Message, to_messages
from burnish.errors import ConfigError, UserError
from burnish.openai_wire.fields import Fields, bad, shown
from burnish.rollout.base import Sampling
from burnish.rollout.stops import UNFINISHED

MAX_MESSAGES = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TEMPERATURE = 2.0
LARGEST = 2**31 - 1
TOO_LONG = "context_length_exceeded"

ROLES = ("system", "user", "assistant")
COMMON = (
    "model", "temperature", "top_p", "top_k", "min_p", "max_tokens", "n", "stop", "stop_token_ids", "ignore_eos",
    "seed", "logprobs", "stream", "stream_options",
)  # fmt: skip
LABELS = ("user", "safety_identifier", "prompt_cache_key")  # who asks; they change no answer

# Unsupported fields: neutral values, which are accepted, and what any other value asks for.
Unsupported = dict[str, tuple[tuple[Any, ...], str]]
TOOLS = "tools and function calls"
OTHER_THAN_TEXT = "answers that are not text"
UNSUPPORTED: Unsupported = {
    "frequency_penalty": ((0,), "penalties"),
    "presence_penalty": ((0,), "penalties"),
    "logit_bias": (({},), "biases on tokens"),
    "service_tier": (("auto", "default"), "service tiers"),
}
UNSUPPORTED_CHAT: Unsupported = UNSUPPORTED | {
    "top_logprobs": ((0,), "log-probs of tokens that were not sampled"),
    "tools": (([],), TOOLS),
    "tool_choice": (("none", "auto"), TOOLS),
    "functions": (([],), TOOLS),
    "function_call": (("none", "auto"), TOOLS),
    "parallel_tool_calls": ((True, False), TOOLS),
    "response_format": (({"type": "text"},), "structured answers"),
    "modalities": ((["text"],), OTHER_THAN_TEXT),
    "audio": ((), OTHER_THAN_TEXT),
    "prediction": ((), "predicted answers"),
    "reasoning_effort": ((), "degrees of reasoning"),
    "verbosity": ((), "degrees of verbosity"),
    "web_search_options": ((), "web search"),
    "store": ((False,), "stored answers"),
    "metadata": (({},), "stored answers"),
}
UNSUPPORTED_IN_MESSAGE: Unsupported = {
    "name": ((), "names of participants"),
    "tool_calls": (([],), TOOLS),
    "function_call": ((), TOOLS),
    "tool_call_id": ((), TOOLS),
    "refusal": (("",), "refusals"),
    "audio": ((), "audio"),
    "annotations": (([],), "annotations"),
}
UNSUPPORTED_STREAM_OPTIONS: Unsupported = {"include_obfuscation": ((False,), "padding against eavesdroppers")}

CHAT_FIELDS = {*COMMON, *LABELS, *UNSUPPORTED_CHAT, "messages", "max_completion_tokens", "chat_template_kwargs"}
STREAM_OPTIONS = {"include_usage", *UNSUPPORTED_STREAM_OPTIONS}


def open_request(body: Any, known: Collection[str], unsupported: Unsupported, models: str) -> Fields:
    """The fields of a request, none of them unknown or unsupported; `models` says which it may name."""
    fields = Fields(body, known)
    if fields.text("model") is None:
        raise bad(f"model is missing; {models}", param="model")
    refuse_unsupported(fields, unsupported)
    for name in LABELS:
        fields.text(name)
    return fields


def read_limit(fields: Fields) -> int | None:
    """`max_tokens` of a chat, by either of its names."""
    limit = fields.integer("max_tokens", None, 1, LARGEST)
    newer = fields.integer("max_completion_tokens", limit, 1, LARGEST)
    if limit is not None and newer != limit:
        raise bad(f"max_tokens={limit} and max_completion_tokens={newer} differ; give one", param="max_tokens")
    return newer


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether the stream ends with the usage."""
    stream = fields.flag("stream")
    if not stream and "stream_options" in fields:
        raise bad("stream_options: only with stream=true", param="stream_options")
    options = Fields(fields.get("stream_options") or {}, STREAM_OPTIONS, "stream_options")
    refuse_unsupported(options, UNSUPPORTED_STREAM_OPTIONS)
    return stream, options.flag("include_usage")


def read_sampling(fields: Fields, max_tokens: int | None, vocabulary: int) -> Sampling:
    stop = fields.texts("stop", MAX_STOPS, MAX_STOP_CHARACTERS)
    if any(UNFINISHED in text for text in stop):
        raise fields.wrong("stop", "text without U+FFFD, which marks an incomplete character")
    seed = fields.integer("seed", None, -(2**63), 2**63 - 1)
    try:
        return Sampling(
            temperature=fields.number("temperature", 1.0, 0, MAX_TEMPERATURE),
            top_p=fields.number("top_p", 1.0, 0, 1),
            top_k=fields.integer("top_k", -1, -1, LARGEST) or -1,
            min_p=fields.number("min_p", 0.0, 0, 1),
            max_tokens=max_tokens,
            stop=stop,
            stop_token_ids=fields.integers("stop_token_ids", MAX_STOPS, below=vocabulary),
            ignore_eos=fields.flag("ignore_eos"),
            seed=secrets.randbits(63) if seed is None else seed,
        )
    except ConfigError as error:
        raise bad(str(error)) from error


def refuse_unsupported(fields: Fields, unsupported: Unsupported, where: str = "") -> None:
    for name, (neutral, what) in unsupported.items():
        value = fields.get(name)
        # In Python 0 equals False.
        taken = any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)
        if name in fields and not taken:
            raise bad(f"{where}{name}={shown(value)}: not supported here: {what}", param=name, code="unsupported")


def read_messages(
    fields: Fields, roles: Sequence[str], unsupported: Unsupported, more: Sequence[str] = ()
) -> list[Message]:
    """The messages of a chat: role, content, and those of the fields `more` that are present."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise bad(f"messages: expected a list of 1 to {MAX_MESSAGES} messages with role and content", param="messages")
    for i, message in enumerate(messages):
        one = Fields(message, {"role", "content", *more, *unsupported}, f"message {i}")
        refuse_unsupported(one, unsupported, f"message {i}: ")
        if one.get("role") not in roles:
            raise bad(f"message {i}: role={shown(one.get('role'))}: use one of {', '.join(roles)}", param="messages")
    try:
        return [{k: m[k] for k in ("role", "content", *more) if k in m} for m in to_messages(messages)]
    except UserError as error:
        raise bad(str(error), param="messages") from error
