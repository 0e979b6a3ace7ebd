"""The body of a request to `Asked`: what to generate, how, and what to send back.

Consumes JSON as a client sent it, and nothing of it is trusted: every number has a range, every list a length
(`parameters.py`), and what this server does not do is refused by name, never ignored. Hands on token ids and a
`Sampling` that the engine takes.
"""

import inspect
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from burnish.data.chat import ChatRenderer, Message, to_messages
from burnish.errors import UserError
from burnish.rollout.base import Sampling, request_seed
from burnish.serving import parameters
from burnish.serving.fields import Fields, is_ids
from burnish.serving.loading import ServedModel
from burnish.serving.problems import Problem, bad, shown
from burnish.serving.text import UNFINISHED


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
    fields = _fields(body, parameters.CHAT_FIELDS, parameters.UNSUPPORTED_CHAT, model)
    limit = fields.integer("max_tokens", None, 1, parameters.LARGEST)
    newer = fields.integer("max_completion_tokens", limit, 1, parameters.LARGEST)
    if limit is not None and newer != limit:
        raise bad(f"max_tokens={limit} and max_completion_tokens={newer} differ; give one", param="max_tokens")
    messages = _messages(fields)
    renderer = model.renderer
    if "chat_template_kwargs" in fields:
        renderer = ChatRenderer(model.tokenizer, _template_kwargs(fields, model))
    try:
        prompt = renderer.prompt_ids(messages)
    except UserError as error:
        raise bad(str(error), param="messages") from error
    return _asked(fields, [prompt], "messages", newer, fields.flag("logprobs"), model)


def read_completion(body: Any, model: ServedModel) -> Asked:
    """The body of /v1/completions."""
    fields = _fields(body, parameters.COMPLETION_FIELDS, parameters.UNSUPPORTED_COMPLETION, model)
    prompts = [_encoded(prompt, model) for prompt in _prompts(fields)]
    if fields.integer("logprobs", 0, 0, parameters.LARGEST) not in (0, 1):
        raise bad(
            f"logprobs={fields.get('logprobs')}: not supported here: log-probs of tokens that were not sampled; "
            "use 0 or 1",
            param="logprobs",
            code="unsupported",
        )
    limit = fields.integer("max_tokens", parameters.COMPLETION_TOKENS, 1, parameters.LARGEST)
    return _asked(fields, prompts, "prompt", limit, "logprobs" in fields, model)


def check_model(name: Any, model: ServedModel) -> None:
    if name != model.name:
        message = f"there is no model {shown(name)} here; this server has {model.name!r}"
        raise Problem(404, message, param="model", code="model_not_found")


def _asked(
    fields: Fields, prompts: list[list[int]], source: str, max_tokens: int | None, log_probs: bool, model: ServedModel
) -> Asked:
    for prompt in prompts:
        _check_prompt(prompt, source, model)
    n = fields.integer("n", 1, 1, parameters.MAX_N)
    stream = fields.flag("stream")
    if not stream and "stream_options" in fields:
        raise bad("stream_options: only with stream=true", param="stream_options")
    options = Fields(fields.get("stream_options") or {}, parameters.STREAM_OPTIONS, "stream_options")
    _refuse_unsupported(options, parameters.UNSUPPORTED_STREAM_OPTIONS)
    assert n is not None
    asked = Asked(
        prompts, n, _sampling(fields, max_tokens), log_probs, stream, include_usage=options.flag("include_usage")
    )
    if asked.count > parameters.MAX_SEQUENCES:
        raise bad(
            f"{len(prompts)} prompts with n={n} are {asked.count} answers; at most {parameters.MAX_SEQUENCES} in one "
            "request",
            param=source,
        )
    return asked


def _sampling(fields: Fields, max_tokens: int | None) -> Sampling:
    temperature = fields.number("temperature", 1.0, 0, parameters.MAX_TEMPERATURE)
    if 0 < temperature < parameters.MIN_TEMPERATURE:
        raise fields.wrong("temperature", f"0 (greedy), or at least {parameters.MIN_TEMPERATURE:g}")
    stop = fields.texts("stop", parameters.MAX_STOPS, parameters.MAX_STOP_CHARACTERS)
    if any(UNFINISHED in text for text in stop):
        raise fields.wrong("stop", "text without U+FFFD, which stands for half a character")
    seed = fields.integer("seed", None, -(2**63), 2**63 - 1)
    top_p = fields.number("top_p", 1.0, 0, 1)
    if top_p == 0:
        raise fields.wrong("top_p", "a number above 0, at most 1")
    return Sampling(
        temperature=temperature,
        top_p=top_p,
        top_k=fields.integer("top_k", -1, -1, parameters.LARGEST) or -1,
        min_p=fields.number("min_p", 0.0, 0, 1),
        max_tokens=max_tokens,
        stop=stop,
        stop_token_ids=fields.integers("stop_token_ids", parameters.MAX_STOPS),
        ignore_eos=fields.flag("ignore_eos"),
        seed=secrets.randbits(63) if seed is None else seed,
    )


def _fields(body: Any, known: set[str], unsupported: parameters.Unsupported, model: ServedModel) -> Fields:
    fields = Fields(body, known)
    if "model" not in fields:
        raise bad(f"model is missing; this server has {model.name!r}", param="model")
    check_model(fields.text("model"), model)
    _refuse_unsupported(fields, unsupported)
    for name in parameters.LABELS:
        fields.text(name)
    return fields


def _refuse_unsupported(fields: Fields, unsupported: parameters.Unsupported, where: str = "") -> None:
    for name, (neutral, what) in unsupported.items():
        value = fields.get(name)
        # Not just as 0 equals False.
        taken = any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral)
        if name in fields and not taken:
            raise bad(f"{where}{name}={shown(value)}: not supported here: {what}", param=name, code="unsupported")


def _messages(fields: Fields) -> list[Message]:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= parameters.MAX_MESSAGES:
        most = parameters.MAX_MESSAGES
        raise bad(f"messages: expected a list of 1 to {most} messages with role and content", param="messages")
    for i, message in enumerate(messages):
        one = Fields(message, parameters.MESSAGE_FIELDS, f"message {i}")
        _refuse_unsupported(one, parameters.UNSUPPORTED_IN_MESSAGE, f"message {i}: ")
        if one.get("role") not in parameters.ROLES:
            known = ", ".join(parameters.ROLES)
            raise bad(f"message {i}: role={shown(one.get('role'))}: use one of {known}", param="messages")
    try:
        return [{"role": m["role"], "content": m["content"]} for m in to_messages(messages)]
    except UserError as error:
        raise bad(str(error), param="messages") from error


def _template_kwargs(fields: Fields, model: ServedModel) -> dict[str, Any]:
    """Variables for the chat template. Not its other arguments: those are the server's, a template above all."""
    kwargs = fields.get("chat_template_kwargs")
    if not isinstance(kwargs, dict) or len(kwargs) > parameters.MAX_TEMPLATE_KWARGS:
        raise fields.wrong("chat_template_kwargs", f"an object with at most {parameters.MAX_TEMPLATE_KWARGS} fields")
    own = inspect.signature(model.tokenizer.apply_chat_template).parameters
    for name, value in kwargs.items():
        if not name.isidentifier() or name in own or not isinstance(value, str | bool | int | float | None):
            raise bad(
                f"chat_template_kwargs: {shown(name)}={shown(value)}: expected a variable of the template and a "
                "string, number or boolean",
                param="chat_template_kwargs",
            )
    return kwargs


def _prompts(fields: Fields) -> list[str] | list[list[int]]:
    prompt = fields.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) or is_ids(prompt) else prompt
    if isinstance(prompts, list) and 1 <= len(prompts) <= parameters.MAX_SEQUENCES:
        for right in (lambda one: isinstance(one, str), is_ids):
            if all(map(right, prompts)):
                return prompts
    raise fields.wrong(
        "prompt", f"text, token ids, or a list of 1 to {parameters.MAX_SEQUENCES} texts or lists of token ids"
    )


def _encoded(prompt: str | list[int], model: ServedModel) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    return list(model.tokenizer(prompt, verbose=False)["input_ids"])


def _check_prompt(prompt: list[int], source: str, model: ServedModel) -> None:
    if not prompt:
        raise bad(f"{source}: no tokens; a model needs at least one to go on", param=source)
    if len(prompt) >= model.context:
        raise bad(
            f"the prompt has {len(prompt)} tokens and the context holds {model.context}, which leaves no room for an "
            "answer; shorten it",
            param=source,
            code="context_length_exceeded",
        )
    wrong = next((i for i in prompt if not 0 <= i < model.engine.vocabulary), None)
    if wrong is not None:
        raise bad(f"{source}: token id {shown(wrong)} is outside the vocabulary of {model.engine.vocabulary}", source)
