"""Agent loops: how one prompt becomes one trajectory. Write your own from these names."""

from burnish.agents.base import AgentLoopBase, AgentLoopOutput, register, register_agent_loop

__all__ = ["AgentLoopBase", "AgentLoopOutput", "register", "register_agent_loop"]
