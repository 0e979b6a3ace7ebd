"""The manager that calls the reward function, for subclasses."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from burnish.protocol import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.utils.reward_score import default_compute_score


class NaiveRewardManager(RewardManagerBase):
    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Callable[..., Any] | None = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ):
        super().__init__(config, tokenizer, compute_score or default_compute_score)
        self.is_async_reward_score = inspect.iscoroutinefunction(self.compute_score)
        self.reward_router_address, self.reward_model_tokenizer = reward_router_address, reward_model_tokenizer

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """The function is given what the policy wrote."""
        item: Any = data[0]
        row, ids = item.non_tensor_batch, item.batch["responses"][item.batch["response_mask"].bool()]  # (tokens,)
        response = self.tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        arguments = {
            "data_source": row["data_source"],
            "solution_str": response,
            "ground_truth": row["reward_model"]["ground_truth"],
            "extra_info": row.get("extra_info", {}),
        }
        if self.is_async_reward_score:
            result = await self.compute_score(**arguments)
        else:
            result = await asyncio.to_thread(self.compute_score, **arguments)
        info = dict(result) if isinstance(result, dict) else {"score": result, "acc": result}
        return {"reward_score": info["score"], "reward_extra_info": info}
