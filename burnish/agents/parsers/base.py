"""What a parser returns: the calls in a turn of the model, what was malformed, and the text around them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from burnish.agents.parsers.jsontext import read_json, same
from burnish.errors import DataError

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
    """One turn of the model."""

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
        self.add(f"the call has no closing {closing}", text)


class ToolParser(ABC):
    """Reads one call format. Special tokens come as text. `parse` never raises, whatever the text is."""

    keeps_end = False  # whether the token that ends a turn is part of a call, so that the text must contain it

    @abstractmethod
    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        """The calls of one turn. `tools` are the schemas on offer, for formats that have no types."""

    @abstractmethod
    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text of a call; `render` checks that the format can carry it."""

    def render(self, call: ToolCall, tools: Sequence[Schema] = ()) -> str:
        """`call` as the model should write it, for demonstrations.

        DataError if this format cannot carry the call, that is, `parse(text, tools)` would read another.
        """
        try:
            arguments = read_json(call.arguments)
        except ValueError as error:
            raise DataError(f"call of {call.name}: its arguments are {error}") from error
        if not isinstance(arguments, dict):
            raise DataError(f"call of {call.name}: its arguments are {call.arguments[:80]!r}; give a JSON object")
        text = self.write(call.name, arguments)
        read = self.parse(text, tools)
        if (
            len(read.calls) != 1
            or read.malformed
            or read.calls[0].name != call.name
            or not same(read_json(read.calls[0].arguments), arguments)
        ):
            raise DataError(
                f"call of {call.name} with {call.arguments[:200]}: this format would read it back as another; "
                "give the tool's schema if it has types to tell, or write the call in a format of JSON"
            )
        return text
