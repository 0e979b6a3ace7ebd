"""Questions with short answers: the last `<answer>…</answer>` must be one of the row's right answers.

Consumes the policy's own text and the ground truth, {"target": one answer or a list} or the target itself; produces a
dict with `score`, `acc` and `em` (1 for an exact match), `f1` and `pred` (the answer given). `method`:

- `em`: `score` for an exact match after normalising (short_answer.py). A response with more than 10 opening or more
  than 10 closing tags gets a quarter of it: it is guessing.
- `subem`: `score` where the given answer contains a right one as whole words.
- `f1`: `score` times the token F1 with the nearest right answer, at least `format_score`.

Any other answer earns `format_score`, none (or a blank one) 0.

With `structure_format_score`, `final_format_score` or `retrieval_score` the form of a searching response counts too.
Valid is (think search)* think answer: nothing but blanks between the blocks or around them, no tag inside a block. What
was retrieved is not part of the policy's text: the passages come along as `extra_info.retrieved`, a list of texts, one
for each search ("" where nothing was found). So an <information> block in the text is made up by the policy, and
invalid; and where the list is there, each search must have its passages.

|                                      | valid                 | invalid           |
|--------------------------------------|-----------------------|-------------------|
| right answer                         | score                 | score - structure |
| wrong, a right answer was retrieved  | structure + retrieval | final             |
| wrong                                | structure             | final             |
| none, or a blank one                 | structure             | 0                 |

Valid without an answer is a blank one. Besides what qa_em gives, the result holds `format` (1 where valid) and
`retrieval` (1 where a retrieved passage has a right answer in it, as whole words).

How it differs from the scorers of the field, whose results the tests hold:
- only what the policy wrote is read, so one answer is enough, and the example answer of a prompt is never taken;
- the answer begins at the nearest opening tag;
- punctuation is that of Unicode, not of ASCII alone, and characters have their plain form (“Hamlet” is Hamlet);
- `subem` does not match inside words ("ater" in "theater");
- a right answer that normalises to nothing is matched neither by an empty answer nor by containment;
- a row whose right answers are all blank is an error, and a target given as text is one answer, not its letters;
- for the form, no assistant marker is looked for, special tokens do not invalidate (decoded text has none), and tags
  within a retrieved passage are not held against the policy.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from burnish.rewards.contract import unboxed
from burnish.rewards.scores.answer_tag import CLOSE, OPEN, last_answer, tagged
from burnish.rewards.scores.short_answer import contains_any, gold_answers, is_exact, token_f1

MOST_TAGS = 10
Method = Literal["em", "subem", "f1"]

_TAG = re.compile(r"<(/?)(think|search|information|answer)>")
# Block → what may come before it; "" is the start of the response.
_AFTER = {"think": ("", "search"), "search": ("think",), "answer": ("think",)}


def compute_score(
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    method: Method = "em",
    format_score: float = 0.0,
    score: float = 1.0,
    structure_format_score: float = 0.0,
    final_format_score: float = 0.0,
    retrieval_score: float = 0.0,
) -> dict[str, float | str]:
    """Score one response. A ground truth without an answer is a ValueError: the row is wrong, not the response."""
    if method not in get_args(Method):
        raise ValueError(f"method={method!r}: qa_em knows 'em', 'subem' and 'f1'")
    golds = gold_answers(ground_truth)
    if structure_format_score or final_format_score or retrieval_score:
        if method != "em" or format_score:
            raise ValueError(
                f"method={method!r}, format_score={format_score}: structure_format_score, final_format_score and "
                "retrieval_score go with method 'em' alone; for a wrong answer use final_format_score"
            )
        parts = FormatScores(structure_format_score, final_format_score, retrieval_score, score)
        return score_with_format(solution_str, golds, (extra_info or {}).get("retrieved"), parts)
    answer = last_answer(solution_str)
    if not answer:
        return {"score": 0.0, "acc": 0.0, "em": 0.0, "f1": 0.0, "pred": ""}
    exact, f1 = is_exact(answer, golds), token_f1(answer, golds)
    if method == "f1":
        earned = max(score * f1, format_score)
    elif exact if method == "em" else exact or contains_any(answer, golds):
        is_spam = max(solution_str.count(OPEN), solution_str.count(CLOSE)) > MOST_TAGS
        earned = score / 4 if method == "em" and is_spam else score
    else:
        earned = format_score
    return {"score": earned, "acc": float(exact), "em": float(exact), "f1": f1, "pred": answer}


def reference(ground_truth: Any, extra_info: Mapping[str, Any]) -> str:
    """A right response: the first right answer."""
    return tagged(gold_answers(ground_truth)[0])


def check(ground_truth: Any, extra_info: Mapping[str, Any]) -> None:
    """ValueError where the ground truth holds no right answer."""
    gold_answers(ground_truth)


class FormatScores(NamedTuple):
    """The rewards of the table."""

    structure: float
    final: float
    retrieval: float
    score: float


def score_with_format(text: str, golds: Sequence[str], retrieved: Any, scores: FormatScores) -> dict[str, float | str]:
    """The table for one response; `retrieved` is None where the trajectory says nothing of it."""
    passages = unboxed(retrieved)  # tables hold lists as arrays
    is_list = isinstance(passages, list | tuple) and all(isinstance(passage, str) for passage in passages)
    if passages is not None and not is_list:
        raise ValueError(f"extra_info.retrieved={passages!r:.200}: must be a list of texts, one for each search")
    searches = count_searches(text)
    valid = searches is not None and (passages is None or len(passages) == searches)
    found = any(contains_any(passage, golds) for passage in passages or ())
    answer = last_answer(text) or ""
    exact = bool(answer) and is_exact(answer, golds)
    if exact:
        earned = scores.score if valid else scores.score - scores.structure
    elif valid:
        earned = scores.structure + (scores.retrieval if found and answer else 0.0)
    else:
        earned = scores.final if answer else 0.0
    return {
        "score": earned,
        "acc": float(exact),
        "em": float(exact),
        "f1": token_f1(answer, golds) if answer else 0.0,
        "pred": answer,
        "format": float(valid),
        "retrieval": float(found),
    }


def count_searches(text: str) -> int | None:
    """How many searches a valid response has; None where the response is not valid."""
    done, inside, end, searches = "", "", 0, 0  # the block that was closed last, the one that is open, its tag's end
    for tag in _TAG.finditer(text):
        closing, name = tag.groups()
        if closing:
            if name != inside:
                return None
            done, inside = name, ""
            searches += name == "search"
        elif inside or done not in _AFTER.get(name, ()) or text[end : tag.start()].strip():
            return None
        else:
            inside = name
        end = tag.end()
    return searches if done == "answer" and not inside and not text[end:].strip() else None
