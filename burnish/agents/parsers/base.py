"""What a parser returns: the calls in a turn of the model, what was malformed, and the text around them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
