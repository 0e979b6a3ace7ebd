"""Reward managers as verl's users write them."""

from collections import defaultdict

import torch
from verl import DataProto
from verl.experimental.reward_loop import reward_manager as reward_loop
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.workers.reward_manager import (
    AbstractRewardManager,
    BatchRewardManager,
    DAPORewardManager,
    NaiveRewardManager,
    PrimeRewardManager,
    register,
)


@register("own_loop")
class OwnLoop(AbstractRewardManager):
    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", **kwargs):
        self.tokenizer = tokenizer
        self.num_examine = num_examine
        self.compute_score = compute_score
        self.reward_fn_key = reward_fn_key

    def __call__(self, data: DataProto, return_dict: bool = False):
        if "rm_scores" in data.batch.keys():  # noqa: SIM118
            return {"reward_tensor": data.batch["rm_scores"]} if return_dict else data.batch["rm_scores"]
        reward_tensor = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        extra_info = defaultdict(list)
        for i in range(len(data)):
            item = data[i]
            prompt_length = item.batch["prompts"].shape[-1]
            valid_length = item.batch["attention_mask"][prompt_length:].sum()
            response = self.tokenizer.decode(item.batch["responses"][:valid_length], skip_special_tokens=True)
            score = self.compute_score(
                data_source=item.non_tensor_batch[self.reward_fn_key],
                solution_str=response,
                ground_truth=item.non_tensor_batch["reward_model"]["ground_truth"],
                extra_info=item.non_tensor_batch.get("extra_info", {}),
            )
            reward = score["score"] if isinstance(score, dict) else score
            reward_tensor[i, valid_length - 1] = reward
            extra_info["length"].append(int(valid_length))
        if return_dict:
            return {"reward_tensor": reward_tensor, "reward_extra_info": extra_info}
        return reward_tensor


@register("doubled")
class Doubled(NaiveRewardManager):
    def __call__(self, data, return_dict=False):
        result = super().__call__(data, return_dict=True)
        result["reward_tensor"] = 2 * result["reward_tensor"]
        return result if return_dict else result["reward_tensor"]


def letters(manager, data):
    rows = zip(data.batch["responses"], data.batch["response_mask"], strict=True)
    return [len(set(manager.tokenizer.decode(row[mask.bool()], skip_special_tokens=True))) for row, mask in rows]


@register("verified")
class Verified(BatchRewardManager):
    def verify(self, data):
        return [{"score": float(count % 3), "letters": count} for count in letters(self, data)]


@register("verified_in_parallel")
class VerifiedInParallel(PrimeRewardManager):
    def verify(self, data):
        return [float(count % 3) for count in letters(self, data)]


@register("own_dapo")
class OwnDAPO(DAPORewardManager):
    def __init__(self, tokenizer, num_examine, compute_score=None, reward_fn_key="data_source", **kwargs):
        super().__init__(tokenizer, num_examine, compute_score, reward_fn_key, max_resp_len=32, **kwargs)


@reward_loop.register("one_by_one")
class OneByOne(RewardManagerBase):
    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        super().__init__(config, tokenizer)
        self.compute_score = compute_score
        self.reward_fn_key = config.data.get("reward_fn_key", "data_source")

    async def run_single(self, data: DataProto) -> dict:
        assert len(data) == 1
        item = data[0]
        ids = item.batch["responses"]
        valid_length = item.batch["attention_mask"][-ids.shape[-1] :].sum()
        response = await self.loop.run_in_executor(
            None, lambda: self.tokenizer.decode(ids[:valid_length], skip_special_tokens=True)
        )
        score = self.compute_score(
            data_source=item.non_tensor_batch[self.reward_fn_key],
            solution_str=response,
            ground_truth=item.non_tensor_batch["reward_model"]["ground_truth"],
            extra_info=item.non_tensor_batch.get("extra_info", {}),
        )
        reward = score["score"] if isinstance(score, dict) else score
        return {"reward_score": reward, "reward_extra_info": {"length": valid_length}}


@reward_loop.register("own_naive_loop")
class OwnNaiveLoop(reward_loop.NaiveRewardManager):
    async def run_single(self, data):
        result = await super().run_single(data)
        return {**result, "reward_extra_info": {"length": data.batch["response_mask"].sum()}}
