"""Does a row's own answer pass its own scorer? What `burnish data check` asks of every row (docs/data-check.md).

The reference answer is `extra_info.answer` where the row has that text; else what the scorer's `reference` makes of the
ground truth; else, with a custom function, the ground truth as text. A worked answer may be in a form that the scorer
does not read: only where the ground truth fails as well is the row at fault. An answer fails a built-in scorer below 1
and a custom function, whose scale is not known, at 0 or less.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from burnish.config.reward import RewardConfig
from burnish.config.rules.scoring import limits
from burnish.errors import ConfigError, UserError
from burnish.rewards.contract import FunctionSpec, ScoreRequest, ScoreResult
from burnish.rewards.routing import BRING, data_source_of, scorer_for, truth_of
from burnish.rewards.scoring import Scoring, request_for

# The names of remarks, which are those of findings in `data/report.py`.
REFUSED, NOT_CHECKED, FAILING, WORKED = "refused", "not_checked", "failing_reference", "worked_answer"

FULL_MARKS = 1.0
TRIALS = 8
_FACTS = {"num_turns": 2, "num_tool_calls": 0, "truncated": False}  # of an answer given at once and in full
_SHOWN = 60


class Remark(NamedTuple):
    finding: str
    text: str


class References:
    """Scores reference answers. `given_up` is the reason why the function is asked no more."""

    def __init__(self, scoring: Scoring):
        self.scoring = scoring
        self.given_up: str | None = None
        self._custom = scoring.spec.is_custom
        self._trials_left = TRIALS if self._custom else 0  # our own scorers always answer

    @classmethod
    def by(cls, function: str | None, reward_fn_key: str = "data_source") -> Self:
        """By `my_reward.py:my_score` (or `my_reward.py`, for its `compute_score`), or by the built-in scorers."""
        path, _, name = (function or "").partition(":")
        if function is not None and not path:
            raise ConfigError(f"--reward {function}: expected a file, and maybe a name in it: my_reward.py:my_score")
        reward = limits(RewardConfig())
        scoring = Scoring(
            FunctionSpec(path or None, name or "compute_score"),
            num_workers=reward.num_workers,
            timeout=reward.timeout,
            reward_fn_key=reward_fn_key,
            reward_model=not path,  # training may have one; a custom function is taken to score every row
        )
        try:
            scoring.validate()
        except UserError as error:
            scoring.close()
            raise ConfigError(f"--reward {function}: {error}") from error
        return cls(scoring)

    def inspect(self, row: Mapping[str, Any]) -> Remark | None:
        """Why the row's answer is not to be scored, or None."""
        source = data_source_of(row, self.scoring.reward_fn_key)
        if self.scoring.leaves_to_model(row):
            return Remark(NOT_CHECKED, f"{source}: rows of reward_model.style model, which only a reward model scores")
        try:
            problem = self.scoring.check_row(row)
        except ConfigError as error:
            return Remark(NOT_CHECKED, str(error).partition(". ")[0])  # the ways out are a run's
        if problem:
            bring = BRING if self._custom else f"--reward my_reward.py here, {BRING} in training"
            return Remark(REFUSED, problem.replace(BRING, bring))
        if _worked_answer(row) is None and self.scoring.runs_programs(row):
            return Remark(NOT_CHECKED, f"{source}: rows without extra_info.answer, a program that passes the tests")
        if _worked_answer(row) is None and truth_of(row)[0] is None:
            return Remark(NOT_CHECKED, f"{source}: rows with neither reward_model.ground_truth nor extra_info.answer")
        return None

    def score(self, rows: Sequence[Mapping[str, Any]]) -> list[Remark | None]:
        """What is wrong with the reference answer of each row; of rows for which `inspect` returned None."""
        remarks: list[Remark | None] = []
        while len(remarks) < len(rows):
            rest = rows[len(remarks) :]
            remarks += self._score(rest[: self._trials_left or None])
        return remarks

    def close(self) -> None:
        self.scoring.close()

    def _score(self, rows: Sequence[Mapping[str, Any]]) -> list[Remark | None]:
        if self.given_up:
            return [Remark(NOT_CHECKED, self.given_up)] * len(rows)
        as_they_are = [None if self.scoring.runs_programs(row) else _worked_answer(row) for row in rows]
        remarks = self._remarks(rows, as_they_are)
        low = {i: remark for i, remark in enumerate(remarks) if remark and remark.finding == WORKED}
        by_truth = self._remarks([rows[i] for i in low], [None] * len(low))
        for (i, remark), also_fails in zip(low.items(), by_truth, strict=True):
            if also_fails:
                remarks[i] = Remark(FAILING, remark.text)
        return remarks

    def _remarks(self, rows: Sequence[Mapping[str, Any]], worked: Sequence[str | None]) -> list[Remark | None]:
        """What is wrong with the worked answer of each row, or, where that is None, with the scorer's `reference`."""
        remarks: list[Remark | None] = [None] * len(rows)
        asked: list[tuple[int, ScoreRequest]] = []
        for i, (row, answer) in enumerate(zip(rows, worked, strict=True)):
            truth, extra_info = truth_of(row)
            try:
                if answer is not None:
                    text = answer
                elif self._custom:
                    text = as_text(truth)
                else:
                    scorer = scorer_for(data_source_of(row, self.scoring.reward_fn_key))
                    text = scorer.module.reference(truth, extra_info)
            except ValueError as error:  # the scorer can read no response to the row
                remarks[i] = Remark(FAILING, str(error))
                continue
            asked.append((i, request_for(row, text, _FACTS, self.scoring.reward_fn_key)))
        results = self.scoring.score_all([request for _, request in asked])
        for (i, request), result in zip(asked, results, strict=True):
            as_it_is = worked[i] is not None
            name = "extra_info.answer" if as_it_is or self.scoring.runs_programs(rows[i]) else "the ground truth"
            remarks[i] = self._judge(request, result, name, as_it_is)
        if any(result.score is not None for result in results):
            self._trials_left = 0
        elif self._trials_left and results:  # is the function worth asking again?
            self._trials_left -= len(results)
            if not self._trials_left:
                self.given_up = f"{self.scoring.spec.label} failed on the first {TRIALS} rows and is asked no more"
        return remarks

    def _judge(self, request: ScoreRequest, result: ScoreResult, name: str, as_it_is: bool) -> Remark | None:
        """`as_it_is`: the answer is written as the data set has it, which may not be how the scorer reads one."""
        if result.score is None:
            cause = str(result.error).strip().splitlines()[-1]
            return Remark(FAILING, f"{name} cannot be scored: {cause}")
        passes = result.score > 0 if self._custom else result.score >= FULL_MARKS
        if passes:
            return None
        text = " ".join(request.solution_str.split())
        end = text if len(text) <= _SHOWN else f"…{text[-_SHOWN:]}"
        truth = as_text(request.ground_truth)
        why = f"; {result.info['why']}" if result.info.get("why") else ""  # what tests say of a program
        text = f"{name} scores {result.score:g}: '{end}', where the ground truth is '{truth:.60}'{why}"
        # An answer that has the ground truth in it as a whole word agrees, and is only written differently.
        pattern = rf"(?<![\w.-]){re.escape(truth.replace(',', ''))}(?!\.?\w)"
        mentions = re.search(pattern, request.solution_str.replace(",", "")) is not None
        only_form = as_it_is and request.ground_truth is not None and mentions
        return Remark(WORKED if only_form else FAILING, text)


def as_text(ground_truth: Any) -> str:
    """A ground truth as a response would give it: of several right answers the first, of an object its `target`."""
    if isinstance(ground_truth, Mapping):
        target = ground_truth.get("target")
        return as_text(target) if target is not None else json.dumps(ground_truth, default=str)
    return as_text(ground_truth[0]) if isinstance(ground_truth, list | tuple) and ground_truth else str(ground_truth)


def _worked_answer(row: Mapping[str, Any]) -> str | None:
    answer = (row.get("extra_info") or {}).get("answer")
    return answer if isinstance(answer, str) and answer.strip() else None
