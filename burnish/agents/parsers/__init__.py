"""Call formats: how a model writes a tool call, by the name of `multi_turn.format`.

`find_parser(name)` gives the parser of a format, which returns the calls in a turn of the model, what was malformed,
and the text around them. Adding a format is adding a file with a `ToolParser` and a line here; `reading.py` is what
they share.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from burnish.errors import ConfigError

TABLE = {
    "hermes": "hermes:HermesParser",
    "json": "json_object:JsonParser",
    "llama3_json": "llama3_json:Llama3JsonParser",
    "qwen3_coder": "qwen3_coder:Qwen3CoderParser",
    "react": "react:ReactParser",
    "gpt-oss": "gpt_oss:GptOssParser",
    "glm": "glm:GlmParser",
    "seed": "seed:SeedParser",
    "minimax": "minimax:MinimaxParser",
    "kimi": "kimi:KimiParser",
    "deepseek_v4": "deepseek_v4:DeepseekV4Parser",
    "gemma4": "gemma4:Gemma4Parser",
}
FORMATS: tuple[str, ...] = tuple(TABLE)
OTHER_SPELLINGS = {
    "gpt_oss": "gpt-oss", "kimi_k2": "kimi", "llama3": "llama3_json", "seed_oss": "seed", "qwen": "hermes",
}  # fmt: skip

Schema = Mapping[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}


@dataclass(frozen=True)
class ToolCall:
    """One call as the model wrote it. `arguments` is JSON text, not yet checked against the tool's schema."""

    name: str
    arguments: str
    call_id: str | None = None


@dataclass(frozen=True)
class Malformed:
    """Something meant as a call, or as part of one, that is none. The model is shown the `reason`."""

    text: str  # as the model wrote it
    reason: str


@dataclass
class Parsed:
    content: str = ""  # the text without the calls
    calls: list[ToolCall] = field(default_factory=list)
    malformed: list[Malformed] = field(default_factory=list)

    def add(self, found: ToolCall | str, text: str) -> None:
        """The call that was read from `text`, or the reason why it is none."""
        if isinstance(found, ToolCall):
            self.calls.append(found)
        else:
            self.malformed.append(Malformed(text, found))

    def unclosed(self, text: str, closing: str) -> None:
        """`text`, if there is any, is a call without its end."""
        if text:
            self.add(f"the call has no closing {closing}", text)


class ToolParser(ABC):
    """Reads one call format. Special tokens come as text. `parse` never raises, whatever the text is."""

    keeps_end = False  # whether the token that ends a turn is part of a call, so that the text must contain it

    @abstractmethod
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        """The calls of one turn. `tools` are the schemas on offer, for formats that have no types."""

    @abstractmethod
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text of a call. Not every format carries every value: `parse` of the text tells."""


def find_parser(name: str) -> ToolParser:
    spelling = OTHER_SPELLINGS.get(name, name)
    if spelling not in TABLE:
        near = difflib.get_close_matches(str(name), [*TABLE, *OTHER_SPELLINGS], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"call format {name!r}: there is no such format; {hint}There are {', '.join(FORMATS)}")
    module, class_name = TABLE[spelling].split(":")
    parser: ToolParser = getattr(import_module(f"{__name__}.{module}"), class_name)()
    return parser
