"""The body of a request to `Asked`: what to generate, how, and what to send back.

Consumes JSON as a client sent it, and nothing of it is trusted: every number has a range, every list a length, and what
this server does not do is refused by name, never ignored. The tables below say which fields there are; one that is in
none of them is unknown. Hands on token ids and a `Sampling` that the engine takes. Prompts are tokenised last, when
everything else is right, and one by one.
"""

import inspect
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import Environment
from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.meta import find_undeclared_variables

from burnish.data.chat import ChatRenderer, Message, to_messages
from burnish.errors import ConfigError, UserError
from burnish.rollout.base import Sampling, request_seed
from burnish.rollout.stops import UNFINISHED
from burnish.serving.fields import Fields, Problem, bad, is_ids, shown
from burnish.serving.loading import ServedModel, temperature_problem

MAX_N = 128
MAX_SEQUENCES = 256  # prompts × n of one request
MAX_MESSAGES = 4096
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_TEMPLATE_KWARGS = 16
MAX_TEMPERATURE = 2.0
COMPLETION_TOKENS = 16  # of /v1/completions without max_tokens
LARGEST = 2**31 - 1
TOO_LONG = "context_length_exceeded"
GENERATION_TAG = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")  # transformers' own, around assistants' text

ROLES = ("system", "user", "assistant")
COMMON = (
    "model", "temperature", "top_p", "top_k", "min_p", "max_tokens", "n", "stop", "stop_token_ids", "ignore_eos",
    "seed", "logprobs", "stream", "stream_options",
)  # fmt: skip
LABELS = ("user", "safety_identifier", "prompt_cache_key")  # say who asks, and change no answer

# Not done here: the values that ask for nothing and are taken, and what any other value asks for.
Unsupported = dict[str, tuple[tuple[Any, ...], str]]
TOOLS = "tools and function calls"
OTHER_THAN_TEXT = "answers that are not text"
_UNSUPPORTED: Unsupported = {
    "frequency_penalty": ((0,), "penalties"),
    "presence_penalty": ((0,), "penalties"),
    "logit_bias": (({},), "biases on tokens"),
    "service_tier": (("auto", "default"), "service tiers"),
}
UNSUPPORTED_CHAT: Unsupported = _UNSUPPORTED | {
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
UNSUPPORTED_COMPLETION: Unsupported = _UNSUPPORTED | {
    "echo": ((False,), "the prompt in the answer"),
    "suffix": (("",), "text after the completion"),
    "best_of": ((1,), "choosing among more samples than are returned (ask for them with n)"),
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
COMPLETION_FIELDS = {*COMMON, *LABELS, *UNSUPPORTED_COMPLETION, "prompt"}
STREAM_OPTIONS = {"include_usage", *UNSUPPORTED_STREAM_OPTIONS}


@dataclass(frozen=True)
class Asked:
    """One request, checked: `n` answers to each of `prompts`."""

    prompts: list[list[int]]
    n: int
    sampling: Sampling  # its seed is the request's
    log_probs: bool
    stream: bool
    include_usage: bool

    @property
    def count(self) -> int:
        return len(self.prompts) * self.n

    def sequences(self) -> Iterator[tuple[list[int], Sampling]]:
        """Prompt and sampling of each answer, in the order of their index."""
        for place, prompt in enumerate(self.prompts):
            for sample in range(self.n):
                yield prompt, replace(self.sampling, seed=request_seed(self.sampling.seed, "serve", place, sample, 0))


def read_chat(body: Any, model: ServedModel) -> Asked:
    """The body of /v1/chat/completions."""
    fields = _fields(body, CHAT_FIELDS, UNSUPPORTED_CHAT, model)
    limit = read_limit(fields)
    messages = read_messages(fields, ROLES, UNSUPPORTED_IN_MESSAGE)
    renderer = model.renderer
    if "chat_template_kwargs" in fields:
        renderer = ChatRenderer(model.tokenizer, _template_kwargs(fields, model))
    try:
        text = renderer.text(messages)
    except UserError as error:
        raise bad(str(error), param="messages") from error
    asked = _asked(fields, 1, "messages", limit, fields.flag("logprobs"), model)
    return replace(asked, prompts=[_prompt(text, "messages", model, add_special_tokens=False)])


def read_completion(body: Any, model: ServedModel) -> Asked:
    """The body of /v1/completions."""
    fields = _fields(body, COMPLETION_FIELDS, UNSUPPORTED_COMPLETION, model)
    prompts = _prompts(fields)
    if fields.integer("logprobs", 0, 0, LARGEST) not in (0, 1):
        raise bad(
            f"logprobs={fields.get('logprobs')}: not supported here: log-probs of tokens that were not sampled; "
            "use 0 or 1",
            param="logprobs",
            code="unsupported",
        )
    limit = fields.integer("max_tokens", COMPLETION_TOKENS, 1, LARGEST)
    asked = _asked(fields, len(prompts), "prompt", limit, "logprobs" in fields, model)
    return replace(asked, prompts=[_prompt(prompt, "prompt", model) for prompt in prompts])


def check_model(name: Any, model: ServedModel) -> None:
    if name != model.name:
        message = f"there is no model {shown(name)} here; this server has {model.name!r}"
        raise Problem(404, message, param="model", code="model_not_found")


def _asked(
    fields: Fields, prompts: int, source: str, max_tokens: int | None, log_probs: bool, model: ServedModel
) -> Asked:
    """All of it but the prompts, of which only the number is known."""
    n = fields.integer("n", 1, 1, MAX_N)
    assert n is not None
    if prompts * n > MAX_SEQUENCES:
        raise bad(
            f"{prompts} prompts with n={n} are {prompts * n} answers; at most {MAX_SEQUENCES} in one request",
            param=source,
        )
    stream, include_usage = read_stream(fields)
    sampling = read_sampling(fields, max_tokens, model.engine.vocabulary)
    if (problem := temperature_problem(model.engine_name, sampling.temperature)) is not None:
        raise bad(problem, param="temperature")
    return Asked([], n, sampling, log_probs, stream, include_usage)


def read_limit(fields: Fields) -> int | None:
    """`max_tokens` of a chat, by either of its names."""
    limit = fields.integer("max_tokens", None, 1, LARGEST)
    newer = fields.integer("max_completion_tokens", limit, 1, LARGEST)
    if limit is not None and newer != limit:
        raise bad(f"max_tokens={limit} and max_completion_tokens={newer} differ; give one", param="max_tokens")
    return newer


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether the answer comes as a stream, and whether that tells the usage at its end."""
    stream = fields.flag("stream")
    if not stream and "stream_options" in fields:
        raise bad("stream_options: only with stream=true", param="stream_options")
    options = Fields(fields.get("stream_options") or {}, STREAM_OPTIONS, "stream_options")
    refuse_unsupported(options, UNSUPPORTED_STREAM_OPTIONS)
    return stream, options.flag("include_usage")


def read_sampling(fields: Fields, max_tokens: int | None, vocabulary: int) -> Sampling:
    stop = fields.texts("stop", MAX_STOPS, MAX_STOP_CHARACTERS)
    if any(UNFINISHED in text for text in stop):
        raise fields.wrong("stop", "text without U+FFFD, which stands for half a character")
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


def _fields(body: Any, known: set[str], unsupported: Unsupported, model: ServedModel) -> Fields:
    fields = Fields(body, known)
    if "model" not in fields:
        raise bad(f"model is missing; this server has {model.name!r}", param="model")
    check_model(fields.text("model"), model)
    refuse_unsupported(fields, unsupported)
    for name in LABELS:
        fields.text(name)
    return fields


def refuse_unsupported(fields: Fields, unsupported: Unsupported, where: str = "") -> None:
    """Refuse by name what is asked for and not done here."""
    for name, (neutral, what) in unsupported.items():
        value = fields.get(name)
        # Not just as 0 equals False.
        taken = any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)
        if name in fields and not taken:
            raise bad(f"{where}{name}={shown(value)}: not supported here: {what}", param=name, code="unsupported")


def read_messages(
    fields: Fields, roles: Sequence[str], unsupported: Unsupported, more: Sequence[str] = ()
) -> list[Message]:
    """The messages of a chat: role, content, and of the fields `more` those that are there."""
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


def _template_kwargs(fields: Fields, model: ServedModel) -> dict[str, Any]:
    kwargs = fields.get("chat_template_kwargs")
    if not isinstance(kwargs, dict) or len(kwargs) > MAX_TEMPLATE_KWARGS:
        raise fields.wrong("chat_template_kwargs", f"an object with at most {MAX_TEMPLATE_KWARGS} fields")
    own = template_variables(model.tokenizer)
    for name, value in kwargs.items():
        if name not in own or not isinstance(value, str | bool | int | float | None):
            raise bad(
                f"chat_template_kwargs: {shown(name)}={shown(value)}: expected a variable of the chat template "
                f"({', '.join(sorted(own)) or 'it has none'}) and a string, number or boolean",
                param="chat_template_kwargs",
            )
    return kwargs


def template_variables(tokenizer: Any) -> set[str]:
    """What the chat template leaves to its caller; not what it is given anyway, as the messages and special tokens."""
    if not tokenizer.chat_template:
        return set()
    template = GENERATION_TAG.sub("", tokenizer.get_chat_template())
    read = find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template))
    arguments = inspect.signature(tokenizer.apply_chat_template).parameters
    given = {"messages", "raise_exception", "strftime_now", *DEFAULT_NAMESPACE, *arguments}
    return {name for name in read - given if not name.endswith(("_token", "_tokens"))}


def _prompts(fields: Fields) -> list[str] | list[list[int]]:
    prompt = fields.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) or is_ids(prompt) else prompt
    if isinstance(prompts, list) and 1 <= len(prompts) <= MAX_SEQUENCES:
        for right in (lambda one: isinstance(one, str), is_ids):
            if all(map(right, prompts)):
                return prompts
    raise fields.wrong("prompt", f"text, token ids, or a list of 1 to {MAX_SEQUENCES} texts or lists of token ids")


def _prompt(given: str | list[int], source: str, model: ServedModel, add_special_tokens: bool = True) -> list[int]:
    """Token ids from which the engine can go on. Characters are counted first, as long texts take long to tokenise."""
    if isinstance(given, str):
        if len(given) > model.context * model.longest_token:
            raise bad(
                f"the prompt has {len(given)} characters, and the context holds {model.context} tokens of at most "
                f"{model.longest_token}; shorten it",
                param=source,
                code=TOO_LONG,
            )
        given = list(model.tokenizer(given, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])
    problem = model.engine.prompt_problem(given)
    if problem is not None:
        raise bad(problem, param=source, code=TOO_LONG if len(given) >= model.context else None)
    return given
