"""A tool as people write them for verl: `create` for each call, the row's values below `create_kwargs`."""

from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op


class GuessTool(BaseTool):
    """Tells whether a guess is the number of the row."""

    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._instance_dict: dict[str, dict[str, Any]] = {}
        self.events: list[str] = []

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(
        self, instance_id: str | None = None, secret: int | None = None, **kwargs
    ) -> tuple[str, ToolResponse]:
        if instance_id is None:
            instance_id = str(uuid4())
        if secret is None:
            secret = kwargs.get("create_kwargs", {}).get("secret")
        self._instance_dict[instance_id] = {"secret": secret, "reward": 0.0}
        self.events.append("create")
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> tuple[ToolResponse, float, dict]:
        self.events.append("execute")
        number = parameters["number"]
        if number < 0:
            raise ValueError("a guess is not negative")
        state = self._instance_dict[instance_id]
        state["reward"] = float(number == state["secret"])
        guesses = kwargs["agent_data"].extra_fields if "agent_data" in kwargs else {}
        guesses["count"] = guesses.get("count", 0) + 1
        text = "right" if state["reward"] else "wrong"
        return ToolResponse(text=f"{text}, {self.config['praise']}"), state["reward"], {"guesses": guesses["count"]}

    async def calc_reward(self, instance_id: str, **kwargs) -> float:
        return self._instance_dict[instance_id]["reward"]

    async def release(self, instance_id: str, **kwargs) -> None:
        self.events.append("release")
        del self._instance_dict[instance_id]


class SelfDescribedTool(GuessTool):
    """The schema is the class's own."""

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return OpenAIFunctionToolSchema.model_validate(
            {
                "type": "function",
                "function": {
                    "name": "guess",
                    "description": "Guess the number.",
                    "parameters": {
                        "type": "object",
                        "properties": {"number": {"type": "integer", "description": "Your guess", "minimum": -9}},
                        "required": ["number"],
                    },
                },
            }
        )
