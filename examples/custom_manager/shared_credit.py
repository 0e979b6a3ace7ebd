"""A custom reward manager: it sees the whole batch, so a score may depend on the other samples.

Here a right answer is worth more where fewer of its group are right. A manager is constructed by keyword as below and
called once per batch; it puts each reward on the last token that the policy sampled. `compute_score` is the
configured function (or the scorer of the row's data source), run in the scoring processes.
"""

from collections import defaultdict

import torch


class SharedCredit:
    def __init__(self, tokenizer, num_examine, compute_score, reward_fn_key, **kwargs):
        self.tokenizer, self.compute_score, self.reward_fn_key = tokenizer, compute_score, reward_fn_key

    def __call__(self, data, return_dict=False):
        right = [self.score(data, i) for i in range(len(data))]
        total = defaultdict(float)
        for uid, score in zip(data.non_tensor_batch["uid"], right, strict=True):
            total[uid] += score
        mask = data.batch["response_mask"]  # (B, R) 1 where the policy sampled the token
        rewards = torch.zeros(mask.shape)  # (B, R)
        for i, uid in enumerate(data.non_tensor_batch["uid"]):
            rewards[i, mask[i].nonzero()[-1]] = right[i] / max(total[uid], 1.0)
        return {"reward_tensor": rewards, "reward_extra_info": {"acc": right}} if return_dict else rewards

    def score(self, data, i):
        row = {name: column[i] for name, column in data.non_tensor_batch.items()}
        sampled = data.batch["responses"][i][data.batch["response_mask"][i].bool()]
        result = self.compute_score(
            data_source=row[self.reward_fn_key],
            solution_str=self.tokenizer.decode(sampled.tolist(), skip_special_tokens=True),
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=row["extra_info"],
        )
        return result["score"] if isinstance(result, dict) else result
