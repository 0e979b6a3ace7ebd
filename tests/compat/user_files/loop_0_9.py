"""The same loop as for verl 0.9, which hands a loop its tools."""

from loop_0_7 import ToolLoop
from verl.experimental.agent_loop import register
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap


@register("loop_0_9")
class GivenToolsLoop(ToolLoop):
    def __init__(self, *args, data_config: DictConfigWrap, tools: ToolListWrap | None = None, **kwargs):
        super().__init__(*args, data_config=data_config, tools=tools, **kwargs)
        self.truncation = data_config.config.truncation

    def load_tools(self, **kwargs) -> list:
        return kwargs["tools"].tools if kwargs["tools"] else []
