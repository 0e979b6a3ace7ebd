"""Which scorer a data source has, and whether a row holds what that scorer reads.

`SCORERS` is the table: adding a scorer is a file under scores/ and a line here. A source has `*` where a family is
meant; upper and lower case are the same. A row's `reward_model.style` says who scores it: `model` the reward model
alone, `both` rule and model, anything else the rule. The values an option of a scorer takes follow from the annotation
of its parameter: choices (`Literal`), switches (`bool`) and numbers (`float`) are checked. No torch; a scorer is
imported when it is first used.
"""

import difflib
import functools
import importlib
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args, get_origin

from burnish.errors import DataError, UserError
from burnish.rewards.code_tests import CONTESTS
from burnish.rewards.contract import PARAMETERS, is_empty
from burnish.user_code import nearest

NO_SOURCE = "unknown"  # what `data/dataset.py` calls the data source of a row that names none
RULE, MODEL, BOTH = "rule", "model", "both"  # styles
BRING = "custom_reward_function.path=my_reward.py"
#: Names that data sets have for a ground truth, in a row or its `extra_info` or `reward_model`.
_LIKE_TRUTH = ("answer", "final_answer", "expected_answer", "answers", "solution", "target", "label", "gold")
_PLACE = "the row has 'ground_truth' at top level; put it under reward_model: {\"ground_truth\": …}"

#: here      our own code with a bounded, tiny cost: it runs where it is asked
#: process   in a scoring process, which a time limit can end
#: sandbox   async, in a process that supervises many programs in the sandbox
Runs = Literal["here", "process", "sandbox"]


@dataclass(frozen=True)
class Scorer:
    name: str
    sources: tuple[str, ...]
    runs: Runs
    reads_ground_truth: bool = True

    @property
    def module(self) -> Any:
        """It has `compute_score`, `reference` and `check` (scores/__init__.py)."""
        return importlib.import_module(f"burnish.rewards.scores.{self.name}")

    def named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Those of `values` that `compute_score` names, less options whose value only other scorers take."""
        own = annotations(self.module.compute_score)

        def is_meant(name: str, value: Any) -> bool:  # a value that no scorer takes is: this one reports it
            others = option_annotations(name)
            return name in PARAMETERS or takes(own[name], value) or not any(takes(other, value) for other in others)

        return {name: value for name, value in values.items() if name in own and is_meant(name, value)}


_CODE = (*CONTESTS, "mbpp", "humaneval")
_QA = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "searchR1_*")
_MATH = ("lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "math")
SCORERS = (
    Scorer("gsm8k", ("openai/gsm8k", "gsm8k"), "here"),
    Scorer("arithmetic", ("burnish/arithmetic",), "here"),
    Scorer("math", _MATH, "process"),
    Scorer("math_dapo", ("math_dapo", "math_dapo_reasoning", "aime*", "*/aime*"), "process"),
    Scorer("prime_math", ("numina_*",), "process"),
    Scorer("code", _CODE, "sandbox", reads_ground_truth=False),  # tests may also be in extra_info
    Scorer("qa_em", _QA, "here"),
    Scorer("countdown", ("countdown",), "here"),
    Scorer("multiply", ("multiply",), "here"),
    Scorer("geo3k", ("hiyouga/geometry3k",), "process"),
    Scorer("reasoning_gym", ("reasoning_gym/*",), "process", reads_ground_truth=False),
)
SOURCES = tuple(source for scorer in SCORERS for source in scorer.sources)


@functools.cache
def scorer_for(data_source: str) -> Scorer:
    """The scorer of a data source. Unknown: DataError with the known ones, and how to add one."""
    for scorer in SCORERS:
        if any(fnmatchcase(data_source.lower(), pattern.lower()) for pattern in scorer.sources):
            return scorer
    near = difflib.get_close_matches(data_source, SOURCES, n=1)
    raise DataError(
        f"data_source={data_source!r} has no built-in scorer{f' (did you mean {near[0]!r}?)' if near else ''}. "
        f"Known: {', '.join(SOURCES)}. To score another, write compute_score(data_source, solution_str, ground_truth, "
        f"extra_info=None) and give {BRING}, or add a file under burnish/rewards/scores/ and a line to SCORERS in "
        "burnish/rewards/routing.py"
    )


def default_compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> Any:
    """Score with the data source's scorer; `kwargs` (e.g. gsm8k's `method`) reach the scorers that name them. What an
    async scorer gives is to be awaited."""
    scorer = scorer_for(data_source)
    values = {**kwargs, "solution_str": solution_str, "ground_truth": ground_truth}
    values |= {"data_source": data_source, "extra_info": extra_info or {}}
    return scorer.module.compute_score(**scorer.named(values))


def scorer_options() -> frozenset[str]:
    """The parameters of the built-in scorers that a user may set."""
    return frozenset().union(*(annotations(scorer.module.compute_score) for scorer in SCORERS)) - set(PARAMETERS)


def option_annotations(name: str) -> list[Any]:
    """The annotations of an option in the scorers that have it."""
    return [known[name] for scorer in SCORERS if name in (known := annotations(scorer.module.compute_score))]


def check_row(
    row: Mapping[str, Any],
    reward_fn_key: str = "data_source",
    custom: bool = False,
    reads_ground_truth: bool = True,
    reward_model: bool = False,
) -> str | None:
    """What keeps this row from being scored, naming the field, or None. `custom`: a custom function scores every row
    that no reward model (`reward_model`: there is one) does alone. Nothing is asked of the row then; but a function
    that insists on a ground truth (`reads_ground_truth`) must not get None because it is in the wrong place."""
    if problem := misspelt_style(row):
        return problem
    style = style_of(row)
    if not reward_model and (style == BOTH or (style == MODEL and not custom)):
        return (
            f"reward_model.style={style!r} asks for a reward model, but none is set: set reward_model.enable=true "
            "reward_model.model.path=…, or make the style 'rule' and score by the data source's rule or a custom "
            f"function: {BRING}"
        )
    if style == MODEL and reward_model:
        return None
    if custom:
        return _PLACE if reads_ground_truth and _is_misplaced(row) else None
    section = row.get("reward_model")
    if section is not None and not isinstance(section, Mapping):
        return f"reward_model={section!r}: must be a dict with style and ground_truth"
    data_source = data_source_of(row, reward_fn_key)
    if data_source in ("", NO_SOURCE):
        return (
            f"the row has no {reward_fn_key}, which chooses the scorer: set {BRING} to score with a custom function, "
            f"or add the column. Known: {', '.join(SOURCES)}"
        )
    ground_truth, extra_info = truth_of(row)
    try:
        scorer = scorer_for(data_source)
        if scorer.reads_ground_truth and is_empty(ground_truth):
            raise ValueError(
                f"reward_model.ground_truth is missing: the scorer '{scorer.name}' of {data_source!r} compares with "
                f"it; fill it in, or score without it by a custom function: {BRING}"
            )
        scorer.module.check(ground_truth, extra_info)
    except DataError as error:
        return str(error)
    except (RecursionError, MemoryError):  # what Python's readers of JSON and programs raise
        return "reward_model.ground_truth, test_cases or metadata is nested too deeply to be read; write it flatter"
    except (ValueError, UserError) as error:
        return _PLACE if _is_misplaced(row) else str(error)
    return None


def data_source_of(row: Mapping[str, Any], reward_fn_key: str = "data_source") -> str:
    """The row's data source, "" where it has none. A dataset keeps what `reward_fn_key` found as `data_source`."""
    return str(row.get(reward_fn_key) or row.get("data_source") or "")


def style_of(row: Mapping[str, Any]) -> str:
    """Who scores the row: RULE, MODEL or BOTH."""
    style = _of_reward_model(row, "style")
    return style if style in (MODEL, BOTH) else RULE


def misspelt_style(row: Mapping[str, Any]) -> str | None:
    """What is wrong with a style that would be a rule's, and is all but MODEL or BOTH; or None."""
    style = _of_reward_model(row, "style")
    if not isinstance(style, str) or style in (MODEL, BOTH):
        return None
    near = difflib.get_close_matches(style.strip().lower(), (MODEL, BOTH), n=1, cutoff=0.8)
    return f"reward_model.style={style!r}: did you mean {near[0]!r}?" if near else None


def _of_reward_model(row: Mapping[str, Any], name: str) -> Any:
    section = row.get("reward_model")
    return section.get(name) if isinstance(section, Mapping) else None


def truth_of(row: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The ground truth, and its `extra_info`: the row's own over the other fields of its `reward_model`."""
    others = dict(row.get("reward_model") or {})
    return others.pop("ground_truth", None), {**others, **(row.get("extra_info") or {})}


def missing_truths(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """How many rows have no ground truth, and the field of the first that looks like one; or None."""
    missing = [row for row in rows if is_empty(_of_reward_model(row, "ground_truth"))]
    if not missing:
        return None
    first = missing[0]
    places = {"": first, "extra_info.": first.get("extra_info") or {}, "reward_model.": first.get("reward_model") or {}}
    near = [place + name for place, held in places.items() for name in _LIKE_TRUTH if not is_empty(held.get(name))]
    hint = f"; {near[0]} looks like one: copy it there, or read it in the function" if near else ""
    return f"{len(missing)} of {len(rows)} rows have no reward_model.ground_truth{hint}"


def _is_misplaced(row: Mapping[str, Any]) -> bool:
    """Whether the ground truth is next to `reward_model` instead of in it."""
    return is_empty(_of_reward_model(row, "ground_truth")) and not is_empty(row.get("ground_truth"))


@functools.cache
def annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The parameters of a scorer, with their annotations."""
    return {name: parameter.annotation for name, parameter in inspect.signature(function).parameters.items()}


def takes(annotation: Any, value: Any) -> bool:
    """Whether an option so annotated takes the value."""
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if annotation in (bool, bool | None):
        return isinstance(value, bool) or (value is None and annotation is not bool)
    return annotation is not float or (isinstance(value, numbers.Real) and not isinstance(value, bool))


def value_problem(of_scorers: Sequence[Any], value: Any) -> str | None:
    """What a value must be instead, where none of the scorers that have the option, annotated so, takes it."""
    if any(takes(annotation, value) for annotation in of_scorers):
        return None
    of_choices = [annotation for annotation in of_scorers if get_origin(annotation) is Literal]
    choices = [str(choice) for annotation in of_choices for choice in get_args(annotation)]
    if choices:
        return f"must be one of {', '.join(choices)}{nearest(str(value), choices)}"
    return "must be true or false" if {bool, bool | None} & set(of_scorers) else "must be a number"
