"""`json`: objects `{"name": …, "arguments": {…}}`, or a list of them, anywhere in a turn, bare or in ``` fences.

An object that is no call is text, whatever is in it. What is not JSON counts as a malformed call only where it mentions
both keys. `arguments` may also be a string that holds the object, as in the messages of chat completions.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from burnish.agents.parsers import Parsed, Schema, ToolCall, ToolParser
from burnish.agents.parsers.reading import check_name, json_end, read_json, write_json

_START = re.compile(r"\{\s*[\"'}]|\[\s*\{")
_QUOTED = re.compile(r"[\"'](name|arguments|parameters)[\"']")
_FENCE_BEFORE, _FENCE_AFTER = re.compile(r"```[\w-]{0,12}\s{0,8}\Z"), re.compile(r"\s{0,8}```")


class JsonParser(ToolParser):
    keys: tuple[str, ...] = ("arguments",)

    def parse(self, text: str, tools: Sequence[Schema] = ()) -> Parsed:
        names = {tool.get("function", tool).get("name") for tool in tools}
        parsed = Parsed()
        at = done = 0
        while found := _START.search(text, at):
            start, end = found.start(), json_end(text, found.start())
            at = end = len(text) if end < 0 else end
            read = text[start:end]
            new = self._read(read, names)
            if not new:
                continue
            before, after = _FENCE_BEFORE.search(text, max(start - 24, done), start), _FENCE_AFTER.match(text, end)
            if before and after:
                start, at = before.start(), after.end()
            parsed.content += text[done:start]
            done = at
            for one in new:
                parsed.add(one, read)
        parsed.content += text[done:]
        return parsed

    def write(self, name: str, arguments: Mapping[str, Any]) -> str:
        return write_json({"name": name, self.keys[0]: arguments})

    def _read(self, text: str, names: set[Any]) -> list[ToolCall | str]:
        """The calls of one object or list, or what is wrong with them; nothing if it is not meant as one."""
        try:
            value = read_json(text)
        except ValueError as error:
            quoted = {one[1] for one in _QUOTED.finditer(text)}
            meant = "name" in quoted and not quoted.isdisjoint(self.keys)
            return [f"the call is {error}"] if meant else []
        items = value if isinstance(value, list) else [value]
        if not any(self._is_meant(item, names) for item in items):
            return []
        return [self._call(item) for item in items]

    def _is_meant(self, item: Any, names: set[Any]) -> bool:
        if not isinstance(item, dict):
            return False
        if "name" in item:  # {"name": "Anna"} is a call where there is a tool of that name
            return any(key in item for key in self.keys) or (isinstance(item["name"], str) and item["name"] in names)
        return set(item) <= set(self.keys) and bool(item)

    def _call(self, item: Any) -> ToolCall | str:
        wanted = f'{{"name": …, "{self.keys[0]}": {{…}}}}'
        if not isinstance(item, dict):
            return f"an entry of the list is no call; write {wanted}"
        try:
            name = check_name(item.get("name"))
            key = next((key for key in self.keys if key in item), None)
            if key is None:
                raise ValueError(f'it has no "{self.keys[0]}"; write {{}} if there are none')
            arguments = read_json(item[key]) if isinstance(item[key], str) else item[key]
            if not isinstance(arguments, dict):
                raise ValueError(f'its "{key}" are no JSON object; write {wanted}')
        except ValueError as error:
            return f"the call cannot be read: {error}"
        return ToolCall(name, write_json(arguments))
