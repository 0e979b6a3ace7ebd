"""Whether a call returned what was expected, where the expected value was written as JSON. Runs inside the sandbox.

JSON knows neither tuples nor keys that are no text, so a tuple equals a list of the same items, and keys are compared
as text. Numbers may differ by a millionth, where one of them is a float.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TOLERANCE = 1e-6


def same_value(got: Any, expected: Any) -> bool:
    if isinstance(got, (list, tuple)) and isinstance(expected, list):
        return len(got) == len(expected) and all(map(same_value, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        texts = {str(key): value for key, value in got.items()}
        return texts.keys() == expected.keys() and all(same_value(texts[key], expected[key]) for key in expected)
    if isinstance(got, float) or isinstance(expected, float):
        return _close(got, expected)
    return type(got) in (bool, int, str, type(None)) and bool(got == expected)


def _close(got: Any, expected: Any) -> bool:
    numbers = isinstance(got, (int, float)) and isinstance(expected, (int, float))
    return numbers and (got == expected or abs(got - expected) <= TOLERANCE * max(1.0, abs(expected)))
