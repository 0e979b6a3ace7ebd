"""The body of a request to `ServeRequest`: what to generate, how, and what to send back.

The fields are read by `openai_wire/requests.py`. Prompts are tokenised last, once everything else is right.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from jinja2.defaults import DEFAULT_NAMESPACE

from burnish.data.chat import ChatRenderer
from burnish.errors import UserError
from burnish.openai_wire import requests as wire
from burnish.openai_wire.fields import ApiError, Fields, bad, is_ids, shown
from burnish.rollout.base import Sampling, request_seed
from burnish.serving.loading import ServedModel, temperature_problem

MAX_N = 128
MAX_SEQUENCES = 256  # prompts × n of one request
MAX_TEMPLATE_KWARGS = 16
COMPLETION_TOKENS = 16  # of /v1/completions without max_tokens
UNSUPPORTED_COMPLETION: wire.Unsupported = wire.UNSUPPORTED | {
    "echo": ((False,), "the prompt in the answer"),
    "suffix": (("",), "text after the completion"),
    "best_of": ((1,), "choosing among more samples than are returned (ask for them with n)"),
}
COMPLETION_FIELDS = {*wire.COMMON, *wire.LABELS, *UNSUPPORTED_COMPLETION, "prompt"}


@dataclass(frozen=True)
class ServeRequest:
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


def read_chat(body: Any, model: ServedModel) -> ServeRequest:
    fields = _fields(body, wire.CHAT_FIELDS, wire.UNSUPPORTED_CHAT, model)
    limit = wire.read_limit(fields)
    messages = wire.read_messages(fields, wire.ROLES, wire.UNSUPPORTED_IN_MESSAGE)
    renderer = model.renderer
    try:
        if "chat_template_kwargs" in fields:
            renderer = ChatRenderer(model.tokenizer, _template_kwargs(fields, model), escape=renderer.escape)
        text = renderer.text(messages)
    except UserError as error:
        raise bad(str(error), param="messages") from error
    request = _request(fields, 1, "messages", limit, fields.flag("logprobs"), model)
    return replace(request, prompts=[_prompt(text, "messages", model, add_special_tokens=False)])


def read_completion(body: Any, model: ServedModel) -> ServeRequest:
    fields = _fields(body, COMPLETION_FIELDS, UNSUPPORTED_COMPLETION, model)
    given = fields.get("prompt")
    prompts = [given] if isinstance(given, str) or is_ids(given) else given
    is_texts = isinstance(prompts, list) and all(isinstance(prompt, str) for prompt in prompts)
    is_lists = isinstance(prompts, list) and all(map(is_ids, prompts))
    if not (is_texts or is_lists) or not 1 <= len(prompts) <= MAX_SEQUENCES:
        raise fields.wrong("prompt", f"text, token ids, or a list of 1 to {MAX_SEQUENCES} texts or lists of token ids")
    if fields.integer("logprobs", 0, 0, wire.LARGEST) not in (0, 1):
        raise bad(
            f"logprobs={fields.get('logprobs')}: not supported here: log-probs of tokens that were not sampled; "
            "use 0 or 1",
            param="logprobs",
            code="unsupported",
        )
    limit = fields.integer("max_tokens", COMPLETION_TOKENS, 1, wire.LARGEST)
    request = _request(fields, len(prompts), "prompt", limit, "logprobs" in fields, model)
    return replace(request, prompts=[_prompt(prompt, "prompt", model) for prompt in prompts])


def check_model(name: Any, model: ServedModel) -> None:
    if name != model.name:
        message = f"unknown model {shown(name)}; this server has {model.name!r}"
        raise ApiError(404, message, param="model", code="model_not_found")


def _request(
    fields: Fields, prompts: int, source: str, max_tokens: int | None, log_probs: bool, model: ServedModel
) -> ServeRequest:
    """The request without its prompts, of which only the number is known."""
    n = fields.integer("n", 1, 1, MAX_N)
    assert n is not None
    if prompts * n > MAX_SEQUENCES:
        raise bad(
            f"{prompts} prompts with n={n} are {prompts * n} answers; at most {MAX_SEQUENCES} in one request",
            param=source,
        )
    stream, include_usage = wire.read_stream(fields)
    sampling = wire.read_sampling(fields, max_tokens, model.engine.vocabulary)
    if (problem := temperature_problem(model.engine_name, sampling.temperature)) is not None:
        raise bad(problem, param="temperature")
    return ServeRequest([], n, sampling, log_probs, stream, include_usage)


def _fields(body: Any, known: set[str], unsupported: wire.Unsupported, model: ServedModel) -> Fields:
    fields = wire.open_request(body, known, unsupported, f"this server has {model.name!r}")
    check_model(fields.get("model"), model)
    return fields


def _template_kwargs(fields: Fields, model: ServedModel) -> dict[str, Any]:
    kwargs = fields.get("chat_template_kwargs")
    if not isinstance(kwargs, dict) or len(kwargs) > MAX_TEMPLATE_KWARGS:
        raise fields.wrong("chat_template_kwargs", f"an object with at most {MAX_TEMPLATE_KWARGS} fields")
    own = template_variables(model.renderer)
    for name, value in kwargs.items():
        if name not in own or not isinstance(value, str | bool | int | float | None):
            raise bad(
                f"chat_template_kwargs: {shown(name)}={shown(value)}: expected a variable of the chat template "
                f"({', '.join(sorted(own)) or 'it has none'}) and a string, number or boolean",
                param="chat_template_kwargs",
            )
    return kwargs


def template_variables(renderer: ChatRenderer) -> set[str]:
    """What the caller of the chat template may set; not what it always gets, such as messages and special tokens."""
    if renderer.plain:
        return set()
    arguments = inspect.signature(renderer.tokenizer.apply_chat_template).parameters
    given = {"messages", "raise_exception", "strftime_now", *DEFAULT_NAMESPACE, *arguments}
    return {name for name in renderer.template().variables - given if not name.endswith(("_token", "_tokens"))}


def _prompt(given: str | list[int], source: str, model: ServedModel, add_special_tokens: bool = True) -> list[int]:
    """Token ids that the engine can continue. Characters are counted first, since long texts take long to tokenise."""
    if isinstance(given, str):
        if len(given) > model.context * model.longest_token:
            raise bad(
                f"the prompt has {len(given)} characters, and the context holds {model.context} tokens of at most "
                f"{model.longest_token}; shorten it",
                param=source,
                code=wire.TOO_LONG,
            )
        given = list(model.tokenizer(given, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])
    problem = model.engine.prompt_problem(given)
    if problem is not None:
        raise bad(problem, param=source, code=wire.TOO_LONG if len(given) >= model.context else None)
    return given
