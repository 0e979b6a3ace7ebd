"""The body of a program's request to `ChatRequest`. What is not supported is refused by name, as by `burnish serve`.

Sampling belongs to the run (training and validation sample differently), because what is trained must be what was
sampled: a program may limit and stop a reply, and nothing else. If it asks for another temperature, the run's is used
and `overruled` names it. Any model name is the policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.data.chat import Message
from burnish.openai_wire.fields import Fields, bad, shown
from burnish.openai_wire.requests import (
    CHAT_FIELDS,
    LABELS,
    LARGEST,
    ROLES,
    UNSUPPORTED_CHAT,
    UNSUPPORTED_IN_MESSAGE,
    Unsupported,
    read_limit,
    read_messages,
    read_sampling,
    read_stream,
    refuse_unsupported,
)

MAX_TOOLS = 128
TOOL_FIELDS = {"tools", "tool_choice", "parallel_tool_calls"}
UNSUPPORTED: Unsupported = {name: what for name, what in UNSUPPORTED_CHAT.items() if name not in TOOL_FIELDS} | {
    "tool_choice": (("none", "auto"), "calls that are forced"),
    "parallel_tool_calls": ((True,), "a limit of one call for each reply"),
    "chat_template_kwargs": (({},), "arguments of the chat template; set data.apply_chat_template_kwargs"),
    "n": ((1,), "several replies to one request; ask several times"),
}
IN_MESSAGE = ("tool_calls", "tool_call_id", "name")
UNSUPPORTED_FIELDS: Unsupported = {k: what for k, what in UNSUPPORTED_IN_MESSAGE.items() if k not in IN_MESSAGE}
OF_THE_RUN = ("temperature", "top_p", "top_k", "min_p", "ignore_eos")


@dataclass(frozen=True)
class ChatRequest:
    """One call of a program, checked."""

    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    reads_calls: bool  # the reply's tool calls are wanted
    sampling: dict[str, Any]  # what the call changes of the run's sampling
    stops: tuple[str, ...]
    overruled: list[str]
    log_probs: bool
    stream: bool
    include_usage: bool


def read_request(body: Any, run: Mapping[str, Any], vocabulary: int) -> ChatRequest:
    """`run` are the sampling parameters of the run; token ids are below `vocabulary`."""
    fields = Fields(body, CHAT_FIELDS)
    refuse_unsupported(fields, UNSUPPORTED)
    for name in LABELS:
        fields.text(name)
    model = fields.text("model")
    if not model:
        raise bad("model is missing; any name is the policy's here", param="model")
    asked = read_sampling(fields, read_limit(fields), vocabulary)
    differing = [name for name in OF_THE_RUN if name in fields and getattr(asked, name) != run[name]]
    overruled = [f"{name}={fields.get(name)}" for name in differing]
    overruled += [f"seed={asked.seed}"] if "seed" in fields else []
    changes: dict[str, Any] = {
        "stop": (*run["stop"], *asked.stop),
        "stop_token_ids": (*run["stop_token_ids"], *asked.stop_token_ids),
        "max_tokens": min(asked.max_tokens or LARGEST, run["max_tokens"] or LARGEST),
    }
    stream, include_usage = read_stream(fields)
    tools = _tools(fields)
    return ChatRequest(
        model=model,
        messages=_messages(fields),
        tools=tools,
        reads_calls=bool(tools) and fields.get("tool_choice") != "none",
        sampling=changes,
        stops=changes["stop"],
        overruled=overruled,
        log_probs=fields.flag("logprobs"),
        stream=stream,
        include_usage=include_usage,
    )


def _messages(fields: Fields) -> list[Message]:
    messages = read_messages(fields, (*ROLES, "tool"), UNSUPPORTED_FIELDS, more=IN_MESSAGE)
    for i, message in enumerate(messages):
        owners = {"tool_calls": "assistant", "tool_call_id": "tool", "name": "tool"}
        for name, role in owners.items():
            if name in message and message["role"] != role:
                raise bad(f"message {i}: {name}: only in a message of the role {role}", param="messages")
        for call in message.get("tool_calls", ()):
            if not isinstance(call.get("function"), dict) or not isinstance(call["function"].get("name"), str):
                raise bad(f"message {i}: tool_calls: {shown(call)} has no function with a name", param="messages")
    return messages


def _tools(fields: Fields) -> list[dict[str, Any]]:
    tools = fields.get("tools") or []
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise bad(f"tools: expected a list of at most {MAX_TOOLS} tools", param="tools")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise bad(
                f'tools[{i}]={shown(tool)}: expected {{"type": "function", "function": {{"name": …}}}}', param="tools"
            )
    return tools
