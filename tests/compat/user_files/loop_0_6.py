"""An agent loop as people wrote them for verl 0.6: what all share is made in `init_class`, replies are lists of ids."""

from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register
from verl.utils.profiler import simple_timer


@register("loop_0_6")
class ChattyLoop(AgentLoopBase):
    @classmethod
    def init_class(cls, config, tokenizer, processor, **kwargs):
        if cls._class_initialized:
            return
        cls._class_initialized = True
        cls.prompt_length = config.actor_rollout_ref.rollout.prompt_length
        cls.response_length = config["actor_rollout_ref"]["rollout"]["response_length"]
        cls.apply_chat_template_kwargs = config.data.get("apply_chat_template_kwargs", {})
        cls.temperature = config.actor_rollout_ref.rollout.get("temperature", 0.5)

    def __init__(self, trainer_config, server_manager, tokenizer, processor, **kwargs):
        super().__init__(trainer_config, server_manager, tokenizer, processor, **kwargs)

    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        image_data = (kwargs.get("multi_modal_data") or {}).get("image", None)
        metrics: dict[str, float] = {}
        request_id = uuid4().hex
        prompt_ids = await self.loop.run_in_executor(
            None,
            lambda: self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, **self.apply_chat_template_kwargs
            ),
        )
        start = len(prompt_ids)
        with simple_timer("generate_sequences", metrics):
            response_ids = await self.server_manager.generate(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, image_data=image_data
            )
        prompt_ids += response_ids
        response_mask = [1] * len(response_ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids[:start],
            response_ids=prompt_ids[start:][: self.response_length],
            response_mask=response_mask[: self.response_length],
            multi_modal_data={"image": image_data} if image_data is not None else {},
            num_turns=2,
            metrics=metrics,
        )


class Strict(ChattyLoop):
    def __init__(self, trainer_config, server_manager, tokenizer, processor):
        super().__init__(trainer_config, server_manager, tokenizer, processor)
