"""`llama3_json`: `{"name": …, "parameters": {…}}`, after `<|python_tag|>` or without, several with `;` between them."""

import re
from collections.abc import Sequence

from burnish.agents.parsers import Malformed, Parsed, Schema
from burnish.agents.parsers.json_object import JsonParser

PYTHON_TAG = "<|python_tag|>"
_BETWEEN = re.compile(r"[\s;]*")


class Llama3JsonParser(JsonParser):
    keys = ("parameters", "arguments")

    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        before, tag, after = text.partition(PYTHON_TAG)
        if not tag:
            parsed = super().parse(text, tools)
            if parsed.calls and _BETWEEN.fullmatch(parsed.content):
                return Parsed("", parsed.calls, parsed.malformed)
            return parsed
        parsed = super().parse(after, tools)
        if not parsed.calls and not parsed.malformed:
            reason = f'there is no call after {PYTHON_TAG}; write {{"name": …, "parameters": {{…}}}}'
            return Parsed(before, [], [Malformed(tag + after, reason)])
        rest = "" if _BETWEEN.fullmatch(parsed.content) else parsed.content
        return Parsed(before + rest, parsed.calls, parsed.malformed)
