"""Custom tools: a function, and a class that keeps something for each trajectory.

A tool serves all trajectories of a run at once. A class keeps what belongs to a trajectory by its instance id, from
`create`, which gets what the row has for it, to `release`:

    tools_kwargs: {guess: {create_kwargs: {secret: 42}}}
"""

from typing import Literal

from burnish.agents.tools import BaseTool, ToolError, ToolResponse, function_tool

PER_KM = {"km": 1.0, "m": 1000.0, "mile": 0.621371}


@function_tool
def convert(value: float, unit: Literal["km", "m", "mile"], to: Literal["km", "m", "mile"] = "km") -> str:
    """Convert a distance.

    Args:
        value: how far it is
        unit: the unit of the value
        to: the unit that is wanted
    """
    if value < 0:
        raise ToolError("a distance is not negative")  # the model sees this text and may try again
    return f"{value / PER_KM[unit] * PER_KM[to]:g} {to}"


class GuessTheNumber(BaseTool):
    """The fewer guesses, the more reward."""

    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)
        self.highest = config["highest"]
        self.games = {}

    async def create(self, instance_id, secret, **kwargs):
        if not 1 <= secret <= self.highest:
            raise ValueError(f"secret={secret}: it must lie between 1 and {self.highest}")  # ends the trajectory
        self.games[instance_id] = {"secret": secret, "guesses": 0, "won": False}

    async def execute(self, instance_id, parameters, **kwargs):
        game, number = self.games[instance_id], parameters["number"]
        game["guesses"] += 1
        game["won"] = number == game["secret"]
        hint = "right" if game["won"] else "higher" if game["secret"] > number else "lower"
        return ToolResponse(hint), 0.0, {"guesses": 1}

    async def calc_reward(self, instance_id, **kwargs):
        game = self.games[instance_id]
        return 1.0 / game["guesses"] if game["won"] else 0.0

    async def release(self, instance_id, **kwargs):
        del self.games[instance_id]
