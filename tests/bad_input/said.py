"""What the tests of bad input share: what a message must say, and the commands that train."""

import pytest

EACH = pytest.mark.parametrize("command", ["ppo", "sft", "rm"])
MODEL_KEY = {"ppo": "actor_rollout_ref.model.path", "sft": "model.path", "rm": "model.path"}


def assert_says(message: str, *parts: str) -> None:
    missing = [part for part in parts if part not in message]
    assert not missing, f"{missing} not in:\n{message}"
