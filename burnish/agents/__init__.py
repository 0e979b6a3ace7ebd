"""Agent loops: how one prompt becomes one trajectory. Write your own from these names."""

from burnish.agents.base import AgentLoopBase, AgentLoopOutput, register, register_agent_loop
from burnish.agents.user_loops import check_names

__all__ = ["AgentLoopBase", "AgentLoopOutput", "check_names", "register", "register_agent_loop"]
