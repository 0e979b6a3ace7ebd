"""`burnish eval`: scores the responses of a file and reports metrics per data source.

Consumes rows with responses; gives a table, a JSON file and an exit code. Scores and failures are those of training
(`rewards/`), metrics those of its validation (`evaluation_report.py`). Every row is checked before the first response
is scored. No torch.
"""

import asyncio
import json
import logging
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from burnish.config import EvalConfig, Loaded
from burnish.config.generation import EvalDataConfig
from burnish.config.reward import RewardConfig
from burnish.data.dataset import complete_row, find_prompt_key
from burnish.data.files import Row, at, columns, lookup, no_column, read_rows, write_parquet
from burnish.entry.guard import say
from burnish.errors import ConfigError, DataError, UserError
from burnish.literal import print_text
from burnish.loop_thread import run_to_end
from burnish.rewards.contract import ScoreRequest, ScoreResult
from burnish.rewards.failures import FailureWatch, apply_policy
from burnish.rewards.pool import ASYNC_CALLS_PER_CHILD
from burnish.rewards.routing import BOTH, MODEL, style_of
from burnish.rewards.scoring import Scoring, request_for
from burnish.tracking.progress import Progress
from burnish.tracking.run_folder import writable_folder
from burnish.trainer.evaluation_report import Evaluation, Sample, print_tables, summarise, write_json

log = logging.getLogger(__name__)

TURNS = 2  # a prompt and a response, as a single-turn agent loop counts them
RESPONSES = "responses"  # the column of `burnish generate`, which has others with an entry per response
SCORES, REWARD_INFO = "scores", "reward_info"  # columns of the file with scores
OWN_FUNCTION = "custom_reward_function.path=my_reward.py"
BATCH = 256  # responses in one call of a function that takes lists

RowRequest = tuple[int, ScoreRequest]  # the number of a row, and the request for one of its responses


def evaluate(loaded: Loaded[EvalConfig], fail_under: float | None = None) -> int:
    """One job, its keys finished. Returns 1 if a data source is below `fail_under`, else 0."""
    rows, samples, evaluation = measure(loaded)
    print_tables(evaluation)
    print_text(f"all results are in {loaded.config.data.output_path}")
    path = loaded.config.data.scored_path
    if path:  # two more lists, an entry per response: its score (null: none), and what else was said
        scored: list[Row] = [{**row, SCORES: [], REWARD_INFO: []} for row in rows]
        for sample in samples:
            result = sample.result
            scored[sample.row][SCORES].append(None if result is None else result.score)
            scored[sample.row][REWARD_INFO].append(None if result is None else json.dumps(result.info))
        print_text(f"the score of each response is in {write_parquet(scored, path)}")
    return judge(evaluation, fail_under)


def measure(loaded: Loaded[EvalConfig]) -> tuple[list[Row], list[Sample], Evaluation]:
    """The rows, the scores of their responses, and the results, which are written."""
    config = loaded.config
    rows, output = read_rows(config.data.path), Path(config.data.output_path or "")
    if output.is_dir():
        raise ConfigError(f"data.output_path={output} is a folder; name a file in it: {output / 'eval.json'}")
    writable_folder(output.parent, "data.output_path")
    if config.data.scored_path:
        writable_folder(Path(config.data.scored_path).parent, "data.scored_path")
    loaded.log_notices()
    custom, rules = config.custom_reward_function, config.reward_model
    with closing(Scoring.from_config(custom, config.reward, rules, config.data.data_source_key)) as scoring:
        scoring.validate()
        asked = requests(rows, config.data, scoring, loaded.explicit)
        results = score(asked, scoring, config.reward)
    samples, failures = apply_failures(asked, results, config.reward)
    log.info("computing the statistics of %d rows", len(rows))
    evaluation = summarise(config.data.path, scoring.spec, samples, failures)
    write_json(evaluation, output)
    return rows, samples, evaluation


def requests(rows: Sequence[Row], data: EvalDataConfig, scoring: Scoring, explicit: frozenset[str]) -> list[RowRequest]:
    """One request per response, in the order of the file. DataError: a row that cannot be scored, with its reason."""
    names = columns(rows)
    custom = scoring.spec.is_custom
    require_named(rows, names, data, explicit, custom)
    taken = [name for name in (SCORES, REWARD_INFO) if data.scored_path and name in names]
    if taken:
        raise DataError(f"{data.path}: the column '{taken[0]}' already exists, and data.scored_path adds it; drop it")
    if custom and not has_prompts(names, data.prompt_key):
        log.info("%s: no column '%s', so extra_info['prompt'] is None (data.prompt_key)", data.path, data.prompt_key)
    if not custom and any(style_of({"reward_model": lookup(row, data.reward_model_key)}) == BOTH for row in rows):
        log.info("%s: rows of reward_model.style both are scored by their rule alone, as in validation", data.path)
    asked: list[RowRequest] = []
    for number, row in enumerate(rows):
        try:
            asked += [(number, request) for request in row_requests(row, names, number, data, scoring)]
        except UserError as error:
            raise DataError(f"{at(data.path, number)}: {error}") from error
    return asked


def require_named(
    rows: Sequence[Row], names: list[str], data: EvalDataConfig, explicit: frozenset[str], custom: bool
) -> None:
    """The columns that the keys name. A scorer may do without prompt, data source and ground truth: these are asked for
    where they were named, or are needed (`row_requests`)."""
    wanted = [("data.response_key", data.response_key, "the responses", "")]
    if "data.prompt_key" in explicit and find_prompt_key(dict.fromkeys(names, True), data.prompt_key) is None:
        wanted.append(("data.prompt_key", data.prompt_key, "the prompts", ""))
    if not custom or "data.data_source_key" in explicit:
        instead = "" if custom else f", or score with a function of your own: {OWN_FUNCTION}"
        wanted.append(("data.data_source_key", data.data_source_key, "the data source", instead))
    if "data.reward_model_key" in explicit:
        wanted.append(("data.reward_model_key", data.reward_model_key, "the ground truth", ""))
    for key, name, what, instead in wanted:
        is_there = name in names or ("." in name and any(lookup(row, name) is not None for row in rows))
        if not is_there:
            raise no_column(data.path, name, names, f"Name the one with {what} in {key}{instead}")


def has_prompts(names: list[str], key: str) -> bool:
    """Whether there is a column of prompts. A field inside a column is there: `require_named` has seen it."""
    return "." in key or find_prompt_key(dict.fromkeys(names, True), key) is not None


def row_requests(row: Row, names: list[str], number: int, data: EvalDataConfig, scoring: Scoring) -> list[ScoreRequest]:
    """The requests for the responses of one row, with the `extra_info` that a reward function gets in training."""
    texts = responses(row, data.response_key)
    if data.data_source_key != "data_source" and lookup(row, data.data_source_key) is None:
        raise DataError(f"column '{data.data_source_key}' (data.data_source_key) is missing or null")
    truth = lookup(row, data.reward_model_key)
    if truth is not None and not isinstance(truth, dict):  # the column is the ground truth itself
        truth = {"style": "rule", "ground_truth": truth}
    named = {**row, data.prompt_key: lookup(row, data.prompt_key), "reward_model": truth}
    no_prompt = {} if has_prompts(names, data.prompt_key) else {"prompt": None}
    if no_prompt:
        named[data.prompt_key] = ""
    full = complete_row(named, prompt_key=data.prompt_key, reward_fn_key=data.data_source_key, position=number)
    if not scoring.spec.is_custom and style_of(full) == MODEL:
        raise DataError(
            "reward_model.style='model': only a reward model scores this row, and `burnish eval` scores by rule. Leave "
            f"such rows out, make the style 'rule', or score with a function of your own: {OWN_FUNCTION}"
        )
    problem = scoring.check_row(full)
    if problem and "ground_truth" in problem and data.reward_model_key not in names:
        problem += (
            f". There is no column '{data.reward_model_key}'; the columns are {', '.join(names)}: name the one with "
            "the ground truth in data.reward_model_key"
        )
    if problem:
        raise DataError(problem)
    return [
        request_for(full, text, facts | no_prompt, data.data_source_key)
        for text, facts in zip(texts, trajectory_facts(row, data.response_key, len(texts)), strict=True)
    ]


def responses(row: Row, key: str) -> list[str]:
    value = lookup(row, key)
    if isinstance(value, str):
        return [value]
    where = f"column '{key}' (data.response_key)"
    if value is None:
        raise DataError(f"{where} is missing or null; it must hold a text, or a list of texts")
    if not isinstance(value, list):
        raise DataError(f"{where} holds a {type(value).__name__} ({value!r:.60}), expected a text or a list of texts")
    if not value:
        raise DataError(f"{where} is an empty list; leave rows without a response out of the file")
    for i, text in enumerate(value):
        if not isinstance(text, str):
            kind = "null" if text is None else f"a {type(text).__name__} ({text!r:.60})"
            raise DataError(f"{where}: response {i} (the first is 0) is {kind}, expected text")
    return value


def trajectory_facts(row: Row, key: str, count: int) -> list[dict[str, Any]]:
    """What a reward function learns about each trajectory in training, as far as the file has it; else a response is
    taken for one answer to one prompt, and whether it was cut is not known."""

    def column(name: str, missing: Any) -> list[Any]:
        values = row.get(name) if key == RESPONSES else None
        values = [values] if isinstance(values, str | int) else values
        if values is None:
            return [missing] * count
        if not isinstance(values, list) or len(values) != count:
            raise DataError(
                f"column '{name}' must hold an entry for each of the {count} responses, not {values!r:.60}; fix it or "
                "drop the column"
            )
        return [missing if value is None else value for value in values]

    columns = zip(column("num_turns", TURNS), column("num_tool_calls", 0), column("finish_reasons", None), strict=True)
    return [
        {"num_turns": turns, "num_tool_calls": calls, "truncated": None if reason is None else reason == "length"}
        for turns, calls, reason in columns
    ]


def score(asked: Sequence[RowRequest], scoring: Scoring, config: RewardConfig) -> list[ScoreResult]:
    """A result per request, failures inside. RewardError as soon as more have failed than may in all."""
    watch = FailureWatch(len(asked), config.max_failure_ratio)
    with Progress("scoring", len(asked), unit="responses") as progress:
        if scoring.one_by_one:
            return run_to_end(_score(asked, scoring, watch, progress, 2 * ASYNC_CALLS_PER_CHILD * config.num_workers))
        results: list[ScoreResult] = []
        for start in range(0, len(asked), BATCH):  # a function that takes lists
            batch = asked[start : start + BATCH]
            found = scoring.score_all([request for _, request in batch])
            for (row, _), result in zip(batch, found, strict=True):
                watch.add(row, result)
            results += found
            progress.advance(len(found), note=f"{len(watch.failed)} failed" if watch.failed else "")
        return results


async def _score(
    asked: Sequence[RowRequest], scoring: Scoring, watch: FailureWatch, progress: Progress, at_once: int
) -> list[ScoreResult]:
    """`at_once` tasks take requests from one stream until it ends: enough to keep every worker process busy. A task
    waits for its score alone, which the pool's time limit bounds; a failure of the watch ends them all."""
    stream = iter(enumerate(asked))
    results: dict[int, ScoreResult] = {}

    async def take() -> None:
        for i, (row, request) in stream:
            results[i] = await scoring.score_request(request)
            watch.add(row, results[i])
            progress.advance(note=f"{len(watch.failed)} failed" if watch.failed else "")
            await asyncio.sleep(0)  # quick scorers never wait: let Ctrl-C through

    await asyncio.gather(*(take() for _ in range(at_once)))
    return [results[i] for i in range(len(asked))]


def apply_failures(
    asked: Sequence[RowRequest], results: Sequence[ScoreResult], config: RewardConfig
) -> tuple[list[Sample], dict[str, Any]]:
    """What the failure policy leaves: samples with their result, None for those that are dropped."""
    rows = [row for row, _ in asked]
    keep, report = apply_policy(results, rows, False, config.max_failure_ratio, config.on_error)
    if report.failed:
        done = "got 0" if config.on_error == "zero" else "are skipped"
        text = "%d of %d responses could not be scored and %s (reward.on_error=%s; uid is the number of the row)\n%s"
        log.warning(text, report.failed, len(asked), done, config.on_error, report.causes)
    samples = [
        Sample(row, request.data_source, result if kept else None)
        for (row, request), result, kept in zip(asked, report.results, keep.tolist(), strict=True)
    ]
    counts = {"failed": report.failed, "dropped": report.dropped_samples}
    return samples, {**counts, "on_error": config.on_error, "causes": report.causes}


def judge(evaluation: Evaluation, fail_under: float | None) -> int:
    if fail_under is None:
        return 0
    code = 0
    for source in evaluation.sources:
        mean = math.nan if source.mean is None else source.mean
        # Rounding aside: the mean of six times 0.1 is a little less.
        if not (mean >= fail_under or math.isclose(mean, fail_under, rel_tol=1e-9, abs_tol=1e-12)):
            found = "no score" if source.mean is None else f"mean {source.core} {source.mean:.10g}"
            say(f"{source.name}: {found}, below --fail-under {fail_under:g}")
            code = 1
    return code
