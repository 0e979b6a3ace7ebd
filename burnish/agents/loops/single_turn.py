"""`single_turn_agent`: render the prompt, sample one response, done."""

from typing import Any

from burnish.agents.base import AgentLoopBase, AgentLoopOutput


class SingleTurnAgentLoop(AgentLoopBase):
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        prompt_ids = self.prompt_ids(row["messages"])
        completion = await self.server_manager.generate(prompt_ids=prompt_ids, sampling_params=sampling_params)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=completion.token_ids,
            response_mask=[1] * len(completion.token_ids),
            response_logprobs=completion.log_probs,
        )
