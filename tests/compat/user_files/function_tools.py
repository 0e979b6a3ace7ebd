"""Functions as tools, as people write them for verl 0.9."""

from verl.tools.function_tool import function_tool
from verl.tools.schemas import ToolResponse


@function_tool
def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    if a == 13:
        raise ValueError("not that one")
    return str(a + b)


@function_tool(
    "double",
    schema={
        "type": "function",
        "function": {
            "name": "anything",
            "description": "Doubles a number.",
            "parameters": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        },
    },
)
async def twice(x):
    return {"doubled": 2 * x}


@function_tool("check")
def check(answer: str):
    """Check an answer.

    Args:
        answer: The answer.
    """
    return ToolResponse(text="noted"), float(answer == "42"), {"checks": 1}
