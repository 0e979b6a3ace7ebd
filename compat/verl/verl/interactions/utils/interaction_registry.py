"""The interactions of a YAML file, for loops that call them themselves."""

from typing import Any

from burnish.agents.interactions.load import load_interactions
from verl.interactions.base import VerlInteraction


def initialize_interactions_from_config(interaction_config_file: str) -> dict[str, Any]:
    found = load_interactions(interaction_config_file)
    return {name: one.interaction if isinstance(one, VerlInteraction) else one for name, one in found.items()}
