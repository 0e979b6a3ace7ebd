"""The recorded cases in `tests/golden/`, and the mark of a test that runs each of them."""

import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "golden"


def golden(name: str, **params: Any) -> list[dict[str, Any]]:
    """The cases of `<name>.json` that have these parameters."""
    cases = json.loads((FOLDER / f"{name}.json").read_text())
    return [case for case in cases if all(case["params"].get(key) == value for key, value in params.items())]


def each(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    assert cases
    return pytest.mark.parametrize("case", cases, ids=[case["name"] for case in cases])
