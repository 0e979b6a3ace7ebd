"""An interaction as people write them for verl: the row's values come with each turn, and the score takes no id."""

from typing import Any
from uuid import uuid4

from verl.interactions.base import BaseInteraction


class TeacherInteraction(BaseInteraction):
    def __init__(self, config: dict):
        super().__init__(config)
        self._instance_dict: dict[str, dict[str, Any]] = {}

    async def start_interaction(self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs) -> str:
        if instance_id is None:
            instance_id = str(uuid4())
        self._instance_dict[instance_id] = {"ground_truth": ground_truth}
        return instance_id

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs
    ) -> tuple[bool, str, float, dict]:
        content = next(one["content"] for one in reversed(messages) if one["role"] == "assistant")
        if self._instance_dict[instance_id]["ground_truth"] in content:
            return True, None, 1.0, {}
        return False, f"{self.config['hint']} {kwargs['query']}", None, None

    async def calculate_score(self) -> float:
        return 0.5

    async def finalize_interaction(self, instance_id: str, **kwargs) -> None:
        del self._instance_dict[instance_id]
