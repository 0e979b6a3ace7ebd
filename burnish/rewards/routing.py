"""Which scorer a data source has, and whether a row holds what that scorer reads.

`SCORERS` is the table: adding a scorer is a file under scores/ with `compute_score` and `reference`, and a line here.
Names end in `*` where a family is meant. No torch; a scorer is imported when it is first used.
"""

import difflib
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any

from burnish.errors import DataError, NotAvailable, UserError
from burnish.rewards.function import accepted_names

NO_SOURCE = "unknown"  # what `data/row.py` calls the data source of a row that names none
_BRING = "custom_reward_function.path=my_reward.py"
_PLACE = "the row has 'ground_truth' at top level; put it under reward_model: {\"ground_truth\": …}"


@dataclass(frozen=True)
class Scorer:
    """One line of the table. `quick`: our own code with a bounded, tiny cost, so it runs without a worker process."""

    name: str
    sources: tuple[str, ...]
    module: str | None = None
    reads_ground_truth: bool = True
    quick: bool = False

    @property
    def compute_score(self) -> Callable[..., Any]:
        """Scores a response; called by keyword with what it names."""
        function: Callable[..., Any] = self._load().compute_score
        return function

    @property
    def reference(self) -> Callable[[Any, Mapping[str, Any]], str]:
        """`reference(ground_truth, extra_info)`: a right response as this scorer reads one, which earns full marks.

        ValueError where the row holds nothing that this scorer can compare with.
        """
        function: Callable[[Any, Mapping[str, Any]], str] = self._load().reference
        return function

    def _load(self) -> ModuleType:
        if self.module is None:
            raise NotAvailable(f"the scorer '{self.name}'", f"Meanwhile bring your own function: {_BRING}")
        return importlib.import_module(self.module)


_CODE = ("codecontests", "apps", "codeforces", "taco", "mbpp", "humaneval")
_QA = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "searchR1_*")
_MATH = ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "math")

SCORERS = (
    Scorer("gsm8k", ("openai/gsm8k", "gsm8k"), "burnish.rewards.scores.gsm8k", quick=True),
    Scorer("arithmetic", ("burnish/arithmetic",), "burnish.rewards.scores.arithmetic", quick=True),
    Scorer("math", _MATH),
    Scorer("math_dapo", ("math_dapo", "aime*")),
    Scorer("prime_math", ("numina_*",)),
    Scorer("code", _CODE, reads_ground_truth=False),  # tests may also be in extra_info or reward_model
    Scorer("qa_em", _QA),
    Scorer("countdown", ("countdown",)),
    Scorer("multiply", ("multiply",)),
    Scorer("geo3k", ("hiyouga/geometry3k",)),
    Scorer("reasoning_gym", ("reasoning_gym/*",), reads_ground_truth=False),
)


@functools.cache
def scorer_for(data_source: str) -> Scorer:
    """The scorer of a data source. Unknown: DataError with the known ones; not built yet: NotAvailable."""
    for scorer in SCORERS:
        if any(fnmatchcase(data_source, pattern) for pattern in scorer.sources):
            scorer.compute_score  # noqa: B018  (raises where there is none)
            return scorer
    near = difflib.get_close_matches(data_source, _available(), n=1)
    raise DataError(
        f"data_source={data_source!r} has no built-in scorer{f' (did you mean {near[0]!r}?)' if near else ''}. "
        f"{_there_is()}. To score another, write compute_score(data_source, solution_str, ground_truth, "
        f"extra_info=None) and give {_BRING}, or add a file under burnish/rewards/scores/ and a line to SCORERS in "
        "burnish/rewards/routing.py"
    )


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> Any:
    """Score with the data source's scorer; `kwargs` (e.g. gsm8k's `method`) reach the scorers that name them."""
    function = scorer_for(data_source).compute_score
    names, takes_rest = _names(function)
    values = {**kwargs, "solution_str": solution_str, "ground_truth": ground_truth}
    values |= {"data_source": data_source, "extra_info": extra_info or {}}
    return function(**{name: value for name, value in values.items() if takes_rest or name in names})


def scorer_options() -> frozenset[str]:
    """The parameters of the built scorers that `reward_kwargs` may set."""
    built = [scorer.compute_score for scorer in SCORERS if scorer.module]
    return frozenset().union(*(_names(function)[0] for function in built)) - {
        "data_source",
        "solution_str",
        "ground_truth",
        "extra_info",
    }


def check_row(
    row: Mapping[str, Any], reward_fn_key: str = "data_source", custom: bool = False, reads_ground_truth: bool = True
) -> str | None:
    """What keeps this row from being scored, naming the field, or None. Called when a dataset is loaded.

    `custom`: a custom function scores every row. It may do without a ground truth, so nothing is asked of the row; but
    a function that insists on one (`reads_ground_truth`) must not get None because the row has it in the wrong place.
    """
    if custom:
        return _PLACE if reads_ground_truth and _is_misplaced(row) else None
    data_source = data_source_of(row, reward_fn_key)
    if data_source in ("", NO_SOURCE):
        return (
            f"the row has no {reward_fn_key}, which chooses the scorer: set {_BRING} to score with a function of your "
            f"own, or add the column. {_there_is()}"
        )
    reward_model = row.get("reward_model")
    if reward_model is not None and not isinstance(reward_model, Mapping):
        return f"reward_model={reward_model!r}: must be a dict with style and ground_truth"
    reward_model = reward_model or {}
    if reward_model.get("style") in ("model", "both"):
        return (
            f"reward_model.style={reward_model['style']!r} asks for a reward model, which is not available yet; "
            f"use style 'rule', or bring your own function: {_BRING}"
        )
    try:
        scorer = scorer_for(data_source)
    except UserError as error:
        return str(error)
    if scorer.reads_ground_truth and _is_empty(reward_model.get("ground_truth")):
        if _is_misplaced(row):
            return _PLACE
        return (
            f"reward_model.ground_truth is missing: the scorer '{scorer.name}' of {data_source!r} compares with it; "
            f"fill it in, or score without it by a function of your own: {_BRING}"
        )
    return None


def data_source_of(row: Mapping[str, Any], reward_fn_key: str = "data_source") -> str:
    """The row's data source, "" where it has none. A dataset keeps what `reward_fn_key` found as `data_source`."""
    return str(row.get(reward_fn_key) or row.get("data_source") or "")


@functools.cache
def _names(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    return accepted_names(function)


def _available() -> list[str]:
    return [source for scorer in SCORERS if scorer.module for source in scorer.sources]


def _there_is() -> str:
    """The data sources that can be scored now, and the names of the scorers that cannot."""
    later = ", ".join(scorer.name for scorer in SCORERS if not scorer.module)
    return f"Available: {', '.join(_available())} (not yet: the scorers {later})"


def _is_misplaced(row: Mapping[str, Any]) -> bool:
    """Whether the ground truth stands beside `reward_model` instead of in it."""
    reward_model = row.get("reward_model")
    inside = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    return _is_empty(inside) and not _is_empty(row.get("ground_truth"))


def _is_empty(value: Any) -> bool:
    return value is None or (hasattr(value, "__len__") and len(value) == 0)
