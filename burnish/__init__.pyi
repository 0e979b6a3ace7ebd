"""The names of the package for type checkers and editors; `__init__.py` looks them up when they are used."""

from burnish.agents.base import AgentLoopBase as AgentLoopBase
from burnish.agents.base import register_agent_loop as register_agent_loop
from burnish.agents.interactions import BaseInteraction as BaseInteraction
from burnish.agents.output import AgentLoopOutput as AgentLoopOutput
from burnish.agents.tools import BaseTool as BaseTool
from burnish.algorithms.advantages import register_adv_est as register_adv_est
from burnish.algorithms.losses import register_policy_loss as register_policy_loss
from burnish.api.answer import evaluate as evaluate
from burnish.api.answer import generate as generate
from burnish.api.answer import serve as serve
from burnish.api.run import Run as Run
from burnish.api.train import sft as sft
from burnish.api.train import train as train
from burnish.protocol import DataProto as DataProto
from burnish.rewards.managers import register as _register

register_reward_manager = _register
__version__: str
__all__: list[str]
