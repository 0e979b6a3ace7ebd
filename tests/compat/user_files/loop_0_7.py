"""An agent loop as people write them for verl 0.7 and 0.8: `rollout_config`, `apply_chat_template`, TokenOutput. It
loads its tools and calls them itself."""

import json
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.schemas import ToolResponse
from verl.tools.utils.tool_registry import initialize_tools_from_config
from verl.utils.profiler import simple_timer
from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.replica import TokenOutput


class ToolLoop(AgentLoopBase):
    def __init__(self, *args, most_calls: int = 3, **kwargs):
        super().__init__(*args, **kwargs)
        self.most_calls = most_calls
        self.tools = {tool.name: tool for tool in self.load_tools(**kwargs)}
        self.tool_schemas = [
            tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True) for tool in self.tools.values()
        ]
        self.tool_parser = ToolParser.get_tool_parser(self.rollout_config.multi_turn.format, self.tokenizer)
        self.response_length = self.rollout_config.response_length

    def load_tools(self, **kwargs) -> list:
        return initialize_tools_from_config(self.rollout_config.multi_turn.tool_config_path)

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        images = (await self.process_vision_info(messages)).get("images")
        prompt_ids = await self.apply_chat_template(messages, tools=self.tool_schemas, images=images)
        metrics: dict[str, Any] = {}
        ids, mask, log_probs, rewards, turns = [], [], [], [], 0
        while len(ids) < self.response_length:
            with simple_timer("generate_sequences", metrics):
                output: TokenOutput = await self.server_manager.generate(
                    request_id=uuid4().hex,
                    prompt_ids=prompt_ids + ids,
                    sampling_params=sampling_params,
                    image_data=images,
                    video_data=None,
                )
            metrics["num_preempted"] = output.num_preempted if output.num_preempted is not None else -1
            ids += output.token_ids
            mask += [1] * len(output.token_ids)
            log_probs += output.log_probs
            turns += 1
            _, calls = await self.tool_parser.extract_tool_calls(output.token_ids)
            if not calls or turns > self.most_calls:
                break
            with simple_timer("tool_calls", metrics):
                results = [await self.call(call, kwargs["tools_kwargs"]) for call in calls]
            rewards += [reward for _, reward in results]
            answers = [{"role": "tool", "content": response.text} for response, _ in results]
            observed = await self.apply_chat_template(answers, remove_system_prompt=True)
            ids += observed
            mask += [0] * len(observed)
            log_probs += [0.0] * len(observed)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids[: self.response_length],
            response_mask=mask[: self.response_length],
            response_logprobs=log_probs[: self.response_length],
            num_turns=2 * turns,
            metrics=metrics,
            routed_experts=None,
            extra_fields={"turn_scores": [], "tool_rewards": rewards},
        )

    async def call(self, call: FunctionCall, tools_kwargs: dict[str, Any]) -> tuple[ToolResponse, float]:
        instance_id = None
        tool, kwargs = self.tools[call.name], tools_kwargs.get(call.name, {})
        try:
            instance_id, _ = await tool.create(create_kwargs=kwargs.get("create_kwargs", {}))
            response, reward, _ = await tool.execute(instance_id, json.loads(call.arguments))
        except Exception as error:  # noqa: BLE001
            return ToolResponse(text=f"Error when executing tool: {error}"), 0.0
        finally:
            if instance_id is not None:
                await tool.release(instance_id)
        return response, reward
