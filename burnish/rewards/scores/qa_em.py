"""Questions with short answers: the last `<answer>…</answer>` must be one of the row's right answers.

Consumes the policy's own text and the ground truth, {"target": one answer or a list} or the target itself; hands on a
dict with `score`, `acc` and `em` (1 for an exact match), `f1` and `pred` (the answer given). `method`:

- `em`: `score` for an exact match after normalising (short_answer.py). A response with more than 10 opening or more
  than 10 closing tags gets a quarter of it: it tries its luck.
- `subem`: `score` where a right answer stands in the given one as whole words.
- `f1`: `score` times the token F1 with the nearest right answer, at least `format_score`.

Any other answer earns `format_score`, none (or a blank one) 0. With `structure_format_score`, `final_format_score` or
`retrieval_score` the form of the whole response counts too: qa_em_format.py.

How it differs from the scorers of the field, whose figures the tests hold:
- only what the policy wrote is read, so one answer is enough, and the example answer of a prompt is never taken;
- the answer begins at the nearest opening tag;
- punctuation is that of Unicode, not of ASCII alone, and characters have their plain form (“Hamlet” is Hamlet);
- `subem` does not match inside words ("ater" in "theater");
- a right answer that normalises to nothing is matched neither by an empty answer nor by containment;
- a row whose right answers are all blank is an error, and a target given as text is one answer.
"""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from burnish.rewards.scores.answer_tag import CLOSE, OPEN, last_answer, tagged
from burnish.rewards.scores.qa_em_format import FormatScores, score_with_format
from burnish.rewards.scores.short_answer import contains_any, gold_answers, is_exact, token_f1

MOST_TAGS = 10
Method = Literal["em", "subem", "f1"]


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
        earned = score / 4 if method == "em" and _is_spam(solution_str) else score
    else:
        earned = format_score
    return {"score": earned, "acc": float(exact), "em": float(exact), "f1": f1, "pred": answer}


def reference(ground_truth: Any, extra_info: Mapping[str, Any]) -> str:
    """A right response: the first right answer."""
    return tagged(gold_answers(ground_truth)[0])


def check(ground_truth: Any, extra_info: Mapping[str, Any]) -> None:
    """ValueError where the ground truth holds no right answer."""
    gold_answers(ground_truth)


def _is_spam(text: str) -> bool:
    return max(text.count(OPEN), text.count(CLOSE)) > MOST_TAGS
