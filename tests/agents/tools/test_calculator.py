"""The calculator as a tool: a value, or a mistake that the model is told."""

from burnish.agents.tools.arithmetic import FUNCTIONS
from burnish.agents.tools.calculator import CalculatorTool


def test_a_value_or_a_mistake(call):
    tool = CalculatorTool({}, CalculatorTool.SCHEMA)
    right, wrong = call(tool, expression="0.1 + 0.2"), call(tool, expression="1/0")
    assert (right.text, right.kind, right.reward) == ("0.3", "ok", 0.0)
    assert (wrong.text, wrong.kind) == ("division by zero", "error")


def test_the_description_names_every_function():
    text = CalculatorTool.SCHEMA["function"]["description"].replace(".", ",").replace(" and ", ", ")
    assert {name for name in FUNCTIONS if f" {name}," not in text} == set()
