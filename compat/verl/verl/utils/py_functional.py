"""Metrics of workers."""

from collections.abc import Mapping
from typing import Any


def append_to_dict(data: dict[str, list[Any]], new_data: Mapping[str, Any], prefix: str = "") -> None:
    """Append each value to the list of its name."""
    for name, value in new_data.items():
        data.setdefault(f"{prefix}{name}", []).append(value)
