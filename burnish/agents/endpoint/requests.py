"""The body of a program's request to `ChatRequest`. What is not supported is refused by name, as by `burnish serve`.

Sampling belongs to the run (training and validation sample differently), because what is trained must be what was
sampled: a program may limit and stop a reply, and nothing else. If it asks for another temperature, the run's is used
and `overruled` names it. Any model name is the policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from burnish.data.chat import Message
from burnish.openai_wire import requests as wire
from burnish.openai_wire.fields import Fields, bad, shown

MAX_TOOLS = 128
TOOL_FIELDS = {"tools", "tool_choice", "parallel_tool_calls"}
UNSUPPORTED: wire.Unsupported = {
    name: what for name, what in wire.UNSUPPORTED_CHAT.items() if name not in TOOL_FIELDS
} | {
    "tool_choice": (("none", "auto"), "calls that are forced"),
    "parallel_tool_calls": ((True,), "a limit of one call for each reply"),
    "chat_template_kwargs": (({},), "arguments of the chat template; set data.apply_chat_template_kwargs"),
    "n": ((1,), "several replies to one request; ask several times"),
}
IN_MESSAGE = ("tool_calls", "tool_call_id", "name")
UNSUPPORTED_FIELDS: wire.Unsupported = {
    k: what for k, what in wire.UNSUPPORTED_IN_MESSAGE.items() if k not in IN_MESSAGE
}
OF_THE_RUN = ("temperature", "top_p", "top_k", "min_p", "ignore_eos")


@dataclass(frozen=True)
class ChatRequest:
    model: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    reads_calls: bool  # the reply's tool calls are wanted
    sampling: dict[str, Any]  # what the call changes of the run's sampling
    overruled: list[str]
    log_probs: bool
    stream: bool
    include_usage: bool


def read_request(body: Any, run: Mapping[str, Any], vocabulary: int) -> ChatRequest:
    """`run` are the sampling parameters of the run; token ids are below `vocabulary`."""
    models = "any name is the policy's here"
    fields = wire.open_request(body, wire.CHAT_FIELDS, UNSUPPORTED, models)
    if not fields.get("model"):
        raise bad(f"model is missing; {models}", param="model")
    asked = wire.read_sampling(fields, wire.read_limit(fields), vocabulary)
    differing = [name for name in OF_THE_RUN if name in fields and getattr(asked, name) != run[name]]
    overruled = [f"{name}={fields.get(name)}" for name in differing]
    overruled += [f"seed={asked.seed}"] if "seed" in fields else []
    stream, include_usage = wire.read_stream(fields)
    tools = _tools(fields)
    return ChatRequest(
        model=fields.get("model"),
        messages=_messages(fields),
        tools=tools,
        reads_calls=bool(tools) and fields.get("tool_choice") != "none",
        sampling={
            "stop": (*run["stop"], *asked.stop),
            "stop_token_ids": (*run["stop_token_ids"], *asked.stop_token_ids),
            "max_tokens": min(asked.max_tokens or wire.LARGEST, run["max_tokens"] or wire.LARGEST),
        },
        overruled=overruled,
        log_probs=fields.flag("logprobs"),
        stream=stream,
        include_usage=include_usage,
    )


def _messages(fields: Fields) -> list[Message]:
    messages = wire.read_messages(fields, (*wire.ROLES, "tool"), UNSUPPORTED_FIELDS, more=IN_MESSAGE)
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
