"""The built-in tools by name, each with a `SCHEMA`. Adding one is adding a file and a line here."""

from importlib import import_module

from burnish.agents.tools.base import BaseTool

BUILT_IN = {
    "calculator": "burnish.agents.tools.calculator:CalculatorTool",
    "python": "burnish.agents.tools.python:PythonTool",
    "search": "burnish.agents.tools.search:SearchTool",
    "calc_gsm8k_reward": "burnish.agents.tools.answer_checker:Gsm8kTool",
    "calc_geo3k_reward": "burnish.agents.tools.answer_checker:Geo3kTool",
}


def built_in(name: str) -> type[BaseTool]:
    """The class, imported when it is asked for."""
    module, _, cls = BUILT_IN[name].partition(":")
    found: type[BaseTool] = getattr(import_module(module), cls)
    return found
