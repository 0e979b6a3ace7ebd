"""The tool `calc_gsm8k_reward`, by the name that users' tool files have. It is burnish's."""

from burnish.agents.tools.answer_checker import Gsm8kTool

__all__ = ["Gsm8kTool"]
