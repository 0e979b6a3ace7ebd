"""Scores of a batch: results in, `token_level_scores` out, failures by the policy. For training and validation.

Samples that a tool broke off are dropped and counted first, then those that a reward model (`reward_model.py`) or the
function could not score; then the manager puts scores on tokens, to which rewards of single turns are added. Training
adds the overlong penalty, and folds the scores of greedy rows into `reward_baselines`.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from burnish.agents.runner import GREEDY
from burnish.algorithms.metrics import lengths
from burnish.algorithms.overlong import overlong_penalty
from burnish.config import PPOConfig
from burnish.config.algorithm import OverlongBufferConfig
from burnish.config.reward import RewardConfig
from burnish.errors import RewardError, UserError
from burnish.protocol import DataProto, object_column
from burnish.rewards.contract import LARGEST_SCORE, NEW_PROMPTS, TURN_REWARDS, ScoreResult, info_value, proposed_by
from burnish.rewards.failures import FailureReport, apply_policy, describe_causes
from burnish.rewards.managers import RewardManager
from burnish.rewards.managers.naive import place
from burnish.rewards.scoring import Scoring
from burnish.trainer.reward_model import PRECOMPUTED, RM_SCORE, Judgement, RewardModel, offered
from burnish.user_code import user_traceback

log = logging.getLogger(__name__)

SCORED = ScoreResult(0.0)  # stands for a sample that is yet to be scored


def score(
    batch: DataProto,
    manager: RewardManager,
    config: RewardConfig,
    metrics: dict[str, float],
    *,
    needs_groups: bool,
    model: RewardModel | None = None,
) -> DataProto:
    """Add `token_level_scores` (B, R) and `reward_info`, per row a dict of JSON's types; rows without a score go."""
    if not manager.takes_results:  # without trajectories that a tool, a retriever or an interaction broke off
        carried = batch.non_tensor_batch.get("score_result", [None] * len(batch))
        broken = [result is not None and result.of_tool for result in carried]
        if any(broken):
            results = [result if is_broken else SCORED for result, is_broken in zip(carried, broken, strict=True)]
            batch = batch[_policy(batch, results, config, metrics, needs_groups)[0]]
    judgement = Judgement() if model is None else model(batch, metrics)
    if manager.takes_results:
        judgement.attach_scores(batch)
        results = judgement.joined_with(manager.score(batch))
        keep, report = _policy(batch, results, config, metrics, needs_groups)
        batch.non_tensor_batch["score_result"] = object_column(report.results)
        batch = batch[keep]
        batch.batch["token_level_scores"], columns = _answer(manager, batch)
    elif model is not None and PRECOMPUTED not in batch.batch:  # the manager finds the model's scores in the batch
        results = [judgement.results.get(row, ScoreResult(0.0)) for row in range(len(batch))]
        keep, report = _policy(batch, results, config, metrics, needs_groups)
        batch = offered(batch, judgement, report.results)[keep]
        scores, columns = _answer(manager, batch)
        taken_back = batch.pop([PRECOMPUTED], [RM_SCORE])
        batch.batch["token_level_scores"], columns = scores, taken_back.non_tensor_batch | columns
    else:
        batch.batch["token_level_scores"], columns = _answer(manager, batch)
    earned = batch.non_tensor_batch.get(TURN_REWARDS, [None] * len(batch))  # by turns, besides the score
    results = [ScoreResult(0.0, turn_rewards=None if turns is None else tuple(turns)) for turns in earned]
    more = place(results, batch.batch["response_mask"], batch.non_tensor_batch["uid"])  # (B, R)
    batch.batch["token_level_scores"] = batch.batch["token_level_scores"] + more
    batch.non_tensor_batch[NEW_PROMPTS] = _new_prompts(batch, columns.pop(NEW_PROMPTS, [None] * len(batch)))
    batch.non_tensor_batch["reward_info"] = object_column(
        [{str(name): info_value(values[i]) for name, values in columns.items()} for i in range(len(batch))]
    )
    return batch


def _policy(
    batch: DataProto,
    results: Sequence[ScoreResult],
    config: RewardConfig,
    metrics: dict[str, float],
    needs_groups: bool,
) -> tuple[np.ndarray, FailureReport]:
    """Which rows stay, (B,), and what the failure policy did; the counts are added to the metrics."""
    greedy = GREEDY in batch.non_tensor_batch
    uids, compares = batch.non_tensor_batch["uid"], needs_groups and not greedy
    keep, report = apply_policy(results, uids, compares, config.max_failure_ratio, config.on_error)
    if greedy:
        keep, report = _with_baselines(batch, keep, report, fewest=2 if needs_groups else 1)
    if report.failed:
        done = "got 0" if config.on_error == "zero" and not report.of_tools else "are dropped"
        text = "%d of %d samples could not be scored and %s\n%s"
        log.warning(text, report.failed, len(results), done, report.causes)
    for name, value in report.metrics().items():
        metrics[name] = metrics.get(name, 0.0) + value
    return keep, report


def add_overlong_penalty(batch: DataProto, max_response_length: int, config: OverlongBufferConfig) -> None:
    """Add the penalty to the score of the last policy token; `reward_info` says how much it was."""
    mask = batch.batch["response_mask"]  # (B, R)
    penalty = overlong_penalty(lengths(batch.batch)[1], max_response_length, config) * mask.any(-1)  # (B,)
    last = (mask * torch.arange(1, mask.shape[1] + 1)).argmax(-1, keepdim=True)  # (B, 1)
    scores = batch.batch["token_level_scores"]
    batch.batch["token_level_scores"] = scores.scatter_add(-1, last, penalty.unsqueeze(-1))
    infos = zip(batch.non_tensor_batch["reward_info"], penalty.tolist(), strict=True)
    penalised = [{**info, "overlong_reward": amount, "overlong": amount < 0} for info, amount in infos]
    batch.non_tensor_batch["reward_info"] = object_column(penalised)


def with_observations(batch: DataProto) -> DataProto:
    """The batch as if the policy had written the whole response: all of it is trained on."""
    width = batch.batch["responses"].shape[1]
    batch.batch["response_mask"] = batch.batch["attention_mask"][:, -width:].clone()
    return batch


def fold_baselines(batch: DataProto) -> DataProto:
    """The samples alone, each with the score of its group's greedy row in `reward_baselines` (B,)."""
    greedy = batch.non_tensor_batch.pop(GREEDY).astype(bool)
    scores = batch.batch["token_level_scores"].sum(-1).tolist()
    baselines = {uid: scores[i] for i, uid in enumerate(batch.non_tensor_batch["uid"]) if greedy[i]}
    samples = batch[~greedy]
    samples.batch["reward_baselines"] = torch.tensor([baselines[uid] for uid in samples.non_tensor_batch["uid"]])
    return samples


def score_metrics(batch: DataProto, penalised: bool) -> dict[str, float]:
    """Of greedy baselines, where there are any, and where overlong responses are `penalised`, of the penalties."""
    metrics, infos = {}, batch.non_tensor_batch["reward_info"]
    if "reward_baselines" in batch.batch:
        metrics["critic/greedy_baseline/mean"] = float(batch.batch["reward_baselines"].mean())
    if penalised:
        metrics["overlong/share"] = float(np.mean([info["overlong"] for info in infos]))
        metrics["overlong/penalty_mean"] = float(np.mean([info["overlong_reward"] for info in infos]))
    return metrics


def outcomes(batch: DataProto, names: Sequence[str] = ("acc",)) -> torch.Tensor:
    """(B,) how right each response is, from 0 to 1, for a process reward model to learn from: the first of these values
    that a sample has, else its score, before anything is added to it."""
    scores = batch.batch["token_level_scores"].sum(-1).tolist()
    infos = batch.non_tensor_batch["reward_info"]
    given = [[info[name] for name in names if info.get(name) is not None] for info in infos]
    found = [first[0] if first else score for first, score in zip(given, scores, strict=True)]
    fits = [isinstance(value, int | float) and 0 <= value <= 1 for value in found]
    if not all(fits):
        wrong = fits.index(False)
        raise RewardError(
            f"a process reward model learns from outcomes between 0 (wrong) and 1 (right), and uid "
            f"{batch.non_tensor_batch['uid'][wrong]} (data_source {batch.non_tensor_batch['data_source'][wrong]}) has "
            f'{found[wrong]!r}; return such a number as "acc" along with the "score"'
        )
    return torch.tensor(found, dtype=torch.float32)


def scores_at_once(manager: RewardManager, config: PPOConfig) -> bool:
    """Whether workers can score as trajectories finish: the manager's function is the configured one, for one each."""
    return manager.spec == Scoring.spec_of(config.custom_reward_function)


def _with_baselines(
    batch: DataProto, keep: np.ndarray, report: FailureReport, fewest: int
) -> tuple[np.ndarray, FailureReport]:
    """A group stays whose greedy row has a score, while `fewest` of its samples are left. `keep` is (B,)."""
    uids, greedy = batch.non_tensor_batch["uid"], batch.non_tensor_batch[GREEDY].astype(bool)
    baselines, left = set(uids[keep & greedy]), Counter(uids[keep & ~greedy])
    keep = keep & np.array([uid in baselines and left[uid] >= fewest for uid in uids], dtype=bool)
    if not keep.any():
        raise RewardError(
            f"none of the {len(uids)} samples of the step could be used: no group is left with a greedy answer to "
            f"compare it with\n{describe_causes(report.results, uids)}"
        )
    dropped_groups = len(set(uids)) - len(set(uids[keep]))
    return keep, replace(report, dropped_samples=int((~keep & ~greedy).sum()), dropped_groups=dropped_groups)


def _answer(manager: RewardManager, batch: DataProto) -> tuple[torch.Tensor, dict[str, Any]]:
    """The rewards (B, R), and what else is known of the samples by name. A manager may be a user's: all is checked."""
    name = manager.name
    try:
        answer = manager(batch, return_dict=True)
    except UserError:
        raise
    except Exception as error:  # a user's class may raise anything
        raise RewardError(f"the reward manager {name} failed\n{user_traceback()}") from error
    if not isinstance(answer, Mapping) or "reward_tensor" not in answer:
        found = f"a dict with {list(answer)}" if isinstance(answer, Mapping) else f"a {type(answer).__name__}"
        raise RewardError(
            f'{name}(data, return_dict=True) returned {found}; return {{"reward_tensor": a tensor (B, R), '
            '"reward_extra_info": {name: B values}}'
        )
    scores = _checked(answer["reward_tensor"], batch, name)
    extra_info: Mapping[str, Any] = answer.get("reward_extra_info") or {}
    for key, values in extra_info.items():  # sequences or arrays of one value for each sample
        one = not hasattr(values, "__len__") or getattr(values, "shape", None) == ()
        if one or len(values) != len(batch):
            found = repr(values) if one else f"{len(values)} values"
            raise RewardError(
                f"{name} returned {found} as reward_extra_info[{key!r}]; a value for each of the {len(batch)} samples "
                "is needed"
            )
    return scores, dict(extra_info)


def _checked(scores: Any, batch: DataProto, manager: str) -> torch.Tensor:
    """What may reach the loss: finite, and on tokens of the policy alone."""
    mask = batch.batch["response_mask"]  # (B, R)
    if not isinstance(scores, torch.Tensor) or scores.shape != mask.shape:
        found = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        raise RewardError(f"{manager} returned {found} as reward_tensor; a tensor of {tuple(mask.shape)} is needed")
    scores = scores.float()
    for what, bad in (("NaN or infinite", ~scores.isfinite()), ("too large", scores.abs() > LARGEST_SCORE)):
        if bool(bad.any()):
            row = int(bad.any(-1).nonzero()[0])
            raise RewardError(
                f"{manager} returned a reward that is {what} for {_name_of(batch, row)}; return a finite one, of at "
                f"most {LARGEST_SCORE:g}"
            )
    if bool((scores[mask == 0] != 0).any()):
        row = int(((scores != 0) & (mask == 0)).any(-1).nonzero()[0])
        raise RewardError(
            f"{manager} put the reward of {_name_of(batch, row)} on a token that the policy did not sample; it belongs "
            "on the last token with response_mask 1"
        )
    return scores


def _name_of(batch: DataProto, row: int) -> str:
    names = ("uid", "sample", "data_source")
    facts = [f"{name} {batch.non_tensor_batch[name][row]}" for name in names if name in batch.non_tensor_batch]
    return f"row {row} of the batch ({', '.join(facts)})"


def _new_prompts(batch: DataProto, by_manager: Any) -> np.ndarray:
    """Per row, what its agent loop and its reward function propose, by the two names. The function's are in the result;
    a manager with its own scoring returns them in its extra info."""
    nothing = [None] * len(batch)
    columns = [batch.non_tensor_batch.get(name, nothing) for name in (NEW_PROMPTS, "score_result")]
    proposed = []
    for by_loop, result, extra in zip(*columns, by_manager, strict=True):
        by_reward = extra if result is None or result.new_prompts is None else result.new_prompts
        proposed.append({**(by_loop or {}), **proposed_by("reward", by_reward)})
    return object_column(proposed)
