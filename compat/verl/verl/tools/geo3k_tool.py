"""The tool `calc_geo3k_reward`, by the name that users' tool files have. It is burnish's."""

from burnish.agents.tools.answer_checker import Geo3kTool

__all__ = ["Geo3kTool"]
