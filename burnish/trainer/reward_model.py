"""The reward model next to the rules: which rows it scores, and how both become one result.

`RewardModel` asks the worker about rows of style model and both, and produces a `Judgement`, which `score.py` asks for
results before and after the reward manager. A score that is NaN or infinite, or a conversation that the template cannot
render, is that sample's failure. Precomputed `rm_scores` in a batch are used as they are, and the model is not asked.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from burnish.config.reward import RewardModelConfig
from burnish.data.dataset import Check, CustomDataset, Dataset
from burnish.errors import DataError
from burnish.protocol import DataProto, object_column
from burnish.rewards.contract import ScoreResult, score_problem
from burnish.rewards.routing import BOTH, MODEL, RULE, misspelt_style, style_of
from burnish.tracking.timer import timed
from burnish.workers.reward_model import COLUMNS, PROMPT, ConversationReader, on_last_token

RM_SCORE, RULE_SCORE = "rm_score", "rule_score"  # in `reward_info`
RESULT, PRECOMPUTED = "score_result", "rm_scores"  # columns of a batch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Judgement:
    """What the model said about a batch, by the number of the row; rows that it was not asked about are not there."""

    results: dict[int, ScoreResult] = field(default_factory=dict)
    alone: frozenset[int] = frozenset()  # of these, the rows that nothing else scores
    weights: tuple[float, float] | None = None  # of rule and model; None: what both score keeps the rule's score

    def attach_scores(self, batch: DataProto) -> None:
        """Put the results of rows that the model alone scores where a manager finds those that are there already."""
        if not self.alone:
            return
        column = batch.non_tensor_batch.setdefault(RESULT, object_column([None] * len(batch)))
        for row in self.alone:
            if column[row] is None or not column[row].of_tool:
                column[row] = self.results[row]

    def joined_with(self, results: Sequence[ScoreResult]) -> list[ScoreResult]:
        both = self.results.keys() - self.alone
        return [self._mixed(result, self.results[i]) if i in both else result for i, result in enumerate(results)]

    def _mixed(self, rule: ScoreResult, model: ScoreResult) -> ScoreResult:
        if rule.score is None or rule.error is not None:
            return rule
        if model.score is None:
            return replace(model, info=rule.info, new_prompts=rule.new_prompts)
        info = {**rule.info, RM_SCORE: model.score}
        if self.weights is None:
            return replace(rule, info=info)
        of_rule, of_model = self.weights
        turns = rule.turn_rewards
        if turns is not None:  # the model judges the whole, so its share stands where the last turn ends
            turns = tuple(of_rule * turn for turn in turns)
            turns = (*turns[:-1], turns[-1] + of_model * model.score)
        score = of_rule * rule.score + of_model * model.score
        return replace(rule, score=score, turn_rewards=turns, info={**info, RULE_SCORE: rule.score})


class RewardModel:
    """The reward model of a run. `mixes=False` leaves rows of style both their rule's score, as validation reports."""

    def __init__(self, config: RewardModelConfig, worker: Any, *, mixes: bool = True):
        self.config, self.worker = config, worker
        self.weights = (config.rule_weight, config.model_weight) if mixes else None
        self.warned = False

    def __call__(self, batch: DataProto, metrics: dict[str, float]) -> Judgement:
        """Ask about the rows that want it; how many lost their start is added to the metrics."""
        styles = [style_of({"reward_model": of_row}) for of_row in batch.non_tensor_batch["reward_model"]]
        alone = np.flatnonzero(models_alone(batch)).tolist()
        if PRECOMPUTED in batch.batch:
            given = batch.batch[PRECOMPUTED].sum(-1).tolist()
            return Judgement({row: ScoreResult(given[row]) for row in alone}, frozenset(alone), self.weights)
        asked = sorted(alone + [i for i, style in enumerate(styles) if style == BOTH])
        if not asked:
            return Judgement()
        with timed(metrics, "reward_model"):
            answer = self.worker.compute_rm_score(batch[asked].select(COLUMNS, [PROMPT]))
        cut = int(answer.non_tensor_batch["rm_cut"].sum())
        metrics["reward_model/truncated"] = metrics.get("reward_model/truncated", 0) + cut
        if cut and not self.warned:
            self.warned = True
            log.warning(
                "%d of %d conversations%s are longer than the reward model reads (reward_model.max_length, or its "
                "context) and lost their start; reward_model/truncated counts them",
                *(cut, len(asked), " of validation" if self.weights is None else ""),
            )
        return Judgement(self._results(batch, asked, answer), frozenset(alone), self.weights)

    def _results(self, batch: DataProto, asked: list[int], answer: DataProto) -> dict[int, ScoreResult]:
        columns, nothing = batch.non_tensor_batch, [None] * len(batch)
        scores = answer.batch[PRECOMPUTED].double().sum(-1).tolist()
        results = {}
        for row, score, problem in zip(asked, scores, answer.non_tensor_batch["rm_problem"], strict=True):
            source, index = str(columns["data_source"][row]), columns.get("index", nothing)[row]
            if problem is None and score_problem(score):
                problem = f"the reward model {self.config.model.path} gave {score}: see its weights and dtype"
            if problem is None:
                results[row] = ScoreResult(score, {RM_SCORE: score}, data_source=source)
            else:
                results[row] = ScoreResult(None, error=problem, data_source=source, index=index)
        return results


def offered(batch: DataProto, judgement: Judgement, results: Sequence[ScoreResult]) -> DataProto:
    """The batch for a manager with its own scoring: with `rm_scores` (B, R), 0 in rows not asked about, and `rm_score`,
    None in those and where the model failed."""
    scores = torch.tensor([result.score if result.score is not None else math.nan for result in results])
    batch.batch[PRECOMPUTED] = on_last_token(scores, batch.batch["response_mask"])
    known = {row for row in judgement.results if results[row].error is None}
    batch.non_tensor_batch[RM_SCORE] = object_column([r.score if i in known else None for i, r in enumerate(results)])
    return batch


def model_metrics(batch: DataProto) -> dict[str, float]:
    given = [info.get(RM_SCORE) for info in batch.non_tensor_batch["reward_info"]]
    found = [score for score in given if isinstance(score, float)]  # a function may return anything of this name
    return {f"reward_model/score/{how}": float(getattr(np, how)(found)) for how in ("mean", "max", "min") if found}


def models_alone(batch: DataProto) -> np.ndarray:
    """(B,) bool, of a batch that is not scored yet: the rows whose score is the model's alone."""
    columns = batch.non_tensor_batch
    there = columns.get(RESULT, [None] * len(batch))  # what an agent loop gave stands for the model's
    pairs = zip(columns["reward_model"], there, strict=True)
    return np.array([style_of({"reward_model": of_row}) == MODEL and given is None for of_row, given in pairs], bool)


def check_rows(
    train: Dataset, val: Dataset | None, conversations: ConversationReader, check: Check, *, by_outcomes: bool = False
) -> None:
    """DataError for a row that cannot be scored. Where no row to train on names the model, it scores all of them, and
    those of validation that no rule can score: their style becomes MODEL. `by_outcomes`: a process reward model learns
    from the rows to train on."""
    if isinstance(train, CustomDataset):  # not known beforehand
        return
    every = [(rows, i, row) for rows in (train, val) if rows for i, row in enumerate(rows.known_rows())]
    for rows, i, row in every:
        if problem := misspelt_style(row):
            raise DataError(f"{rows.where(i)}: {problem}")
    if all(style_of(row) == RULE for row in train.known_rows()):
        unscored = [row for rows, _, row in every if rows is val and style_of(row) == RULE and check(row)]
        for row in (*train.known_rows(), *unscored):
            row["reward_model"]["style"] = MODEL
        log.info(
            "reward_model.enable=true, and no row of data.train_files has the reward_model.style model or both: the "
            "reward model alone scores all %d rows%s. To add the score of a rule, make the style both",
            *(len(train), f", and {len(unscored)} rows of validation that no rule can score" if unscored else ""),
        )
    for rows, i, row in every:
        problem, style = check(row), style_of(row)
        if problem is None and style in (MODEL, BOTH):
            problem = conversations.problem_with(rows.value(i, PROMPT))
        if style == MODEL and by_outcomes and rows is train:
            problem = (
                "only the reward model scores this row, and a process reward model (PRIME) learns from the outcomes of "
                "rules, 0 or 1: make reward_model.style 'both' or 'rule', or choose another algorithm.adv_estimator"
            )
        if problem:
            raise DataError(f"{rows.where(i)}: {problem}")
