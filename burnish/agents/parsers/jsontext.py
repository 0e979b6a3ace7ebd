"""JSON as models write it: read within limits, with reasons that help the model to correct it, and written for a call.

Nesting is bounded well below the interpreter's stack, so that whoever reads the arguments of a call later can.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"
# A string, closed or cut off at the end of the text; a bracket.
_STRUCTURE = re.compile(r'"(?:[^"\\]+|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)


def read_json(text: str) -> Any:
    """The value of `text`. ValueError says what is wrong, in words that follow "it is"."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]} at {where}") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError:  # the interpreter bounds the digits of an integer
        raise ValueError("not usable: it holds a number with too many digits") from None
    if text.count("{") + text.count("[") > MAX_DEPTH and _is_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


def write_json(value: Any) -> str:
    """JSON text. Half of a surrogate pair, which JSON can spell but no encoding can carry, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_text(text) else json.dumps(value)


def is_text(text: str) -> bool:
    """Whether `text` can be encoded, that is, holds no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_name(name: Any) -> str:
    """The name of a call. ValueError says what is wrong with it."""
    if not isinstance(name, str) or not name.strip() or not is_text(name):
        raise ValueError('it names no tool: "name" must be the name of one, as a string')
    return name


def json_end(text: str, start: int) -> int:
    """Where the object or list that begins at `start` ends, valid or not; -1 where it never does."""
    depth = 0
    for token in _STRUCTURE.finditer(text, start):
        if token[0] in ("{", "["):
            depth += 1
        elif token[0] in ("}", "]"):
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inside = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in inside for child in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return False
    return True
