"""`calculator`: the value of an arithmetic expression (arithmetic.py), without eval."""

from typing import Any

from burnish.agents.tools.arithmetic import evaluate
from burnish.agents.tools.base import Answer, BaseTool, ToolResponse
from burnish.agents.tools.schema import function_schema


class CalculatorTool(BaseTool):
    """Keeps no state and gives no reward."""

    SCHEMA = function_schema(
        "calculator",
        "Works out an arithmetic expression. It knows + - * / // % ** and parentheses, the functions abs, ceil, cos, "
        "exp, floor, log, log10, max, min, round, sin, sqrt and tan, and the constants pi and e.",
        {"expression": {"type": "string", "description": "The expression, such as (12.5 + 3) * 4"}},
        ["expression"],
    )

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        return ToolResponse(evaluate(parameters["expression"])), 0.0, {}
