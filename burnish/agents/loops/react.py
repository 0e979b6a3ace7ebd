"""`react_agent`: the tool agent in ReAct's lines of text (Thought, Action, Action Input, Observation, Final Answer)."""

from burnish.agents.loops.tool import ToolAgentLoop


class ReactAgentLoop(ToolAgentLoop):
    """For models without a template for tools: all of it is plain text."""

    call_format = "react"
