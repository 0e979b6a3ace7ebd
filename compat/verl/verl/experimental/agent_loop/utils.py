"""Helpers that users' loops import: where a file is, and tool results in the harmony format of gpt-oss."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def resolve_config_path(config_path: str) -> str:
    """The absolute path of a file, which is looked for from the working directory."""
    path = Path(config_path).expanduser()
    if not path.is_absolute() and not path.exists():
        raise FileNotFoundError(f"{config_path}: no such file in the working directory ({Path.cwd()})")
    return str(path.absolute())


def format_gpt_oss_tool_response_manually(tool_response: str, tool_call_name: str) -> str:
    return f"<|start|>functions.{tool_call_name} to=assistant<|channel|>commentary<|message|>{tool_response}<|end|>"


def add_generation_prompt_for_gpt_oss(message_content: str) -> str:
    return f"{message_content}<|start|>assistant"


def build_gpt_oss_tool_response_text(messages: Sequence[Mapping[str, Any]], tool_call_names: Sequence[str]) -> str:
    pairs = zip(messages, tool_call_names, strict=True)
    results = [format_gpt_oss_tool_response_manually(message["content"], name) for message, name in pairs]
    return add_generation_prompt_for_gpt_oss("".join(results))
