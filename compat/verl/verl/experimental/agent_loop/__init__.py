"""Agent loops written for verl 0.6 to 0.9 (`agent_loop.py`), the call formats and helpers that they import."""

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    AsyncLLMServerManager,
    register,
)

__all__ = ["AgentLoopBase", "AgentLoopMetrics", "AgentLoopOutput", "AsyncLLMServerManager", "register"]
