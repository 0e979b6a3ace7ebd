"""verl's interface to call formats: `ToolParser.get_tool_parser("hermes", tokenizer)` is burnish's parser of that name,
or one that was registered here."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from burnish.agents.parsers import find_parser

Parser = TypeVar("Parser", bound="type[ToolParser]")


class FunctionCall(BaseModel):
    arguments: str  # JSON text, as the model wrote it
    name: str
    tool_call_id: str | None = None


class ToolParser:
    _registry: ClassVar[dict[str, Callable[[Any], "ToolParser"]]] = {}

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    @property
    def stop_token_ids(self) -> list[int]:
        return []

    async def extract_tool_calls(
        self, responses_ids: Sequence[int], tools: Sequence[Any] | None = None
    ) -> tuple[str, list[FunctionCall]]:
        """The text without its calls, and the calls."""
        raise NotImplementedError

    @classmethod
    def get_tool_parser(cls, name: str, tokenizer: Any) -> "ToolParser":
        make = cls._registry.get(name) or functools.partial(BurnishParser, name)
        return make(tokenizer)

    @classmethod
    def register(cls, name: str) -> Callable[[Parser], Parser]:
        def decorate(parser: Parser) -> Parser:
            cls._registry[name] = parser
            return parser

        return decorate


class BurnishParser(ToolParser):
    """Calls that cannot be read are left out, as in verl; burnish's own tool agent tells the model why."""

    def __init__(self, name: str, tokenizer: Any):
        super().__init__(tokenizer)
        self._parser = find_parser(name)

    async def extract_tool_calls(
        self, responses_ids: Sequence[int], tools: Sequence[Any] | None = None
    ) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        schemas = [tool if isinstance(tool, dict) else tool.model_dump(exclude_none=True) for tool in tools or ()]
        parsed = self._parser.parse(text, schemas)
        calls = [FunctionCall(name=one.name, arguments=one.arguments, tool_call_id=one.call_id) for one in parsed.calls]
        return parsed.content, calls
