"""Questions with short answers: the last `<answer>…</answer>` must be one of the row's right answers (docs/qa-
rewards.md).

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
from typing import Any, Literal, get_args

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
    if method not in get_args(Method):
        raise ValueError(f"method={method!r}: qa_em knows 'em', 'subem' and 'f1'")
    golds = gold_answers(ground_truth)
    if structure_format_score or final_format_score or retrieval_score:
        if method != "em" or format_score:
            raise ValueError(
                f"method={method!r}, format_score={format_score}: structure_format_score, final_format_score and "
                "retrieval_score go with method 'em' alone; for a wrong answer use final_format_score"
            )
        table = structure_format_score, final_format_score, retrieval_score, score
        return _score_with_format(solution_str, golds, (extra_info or {}).get("retrieved"), *table)
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
    return tagged(gold_answers(ground_truth)[0])


def check(ground_truth: Any, extra_info: Mapping[str, Any]) -> None:
    gold_answers(ground_truth)


def _score_with_format(
    text: str, golds: Sequence[str], retrieved: Any, structure: float, final: float, retrieval: float, score: float
) -> dict[str, float | str]:
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
        earned = score if valid else score - structure
    elif valid:
        earned = structure + (retrieval if found and answer else 0.0)
    else:
        earned = final if answer else 0.0
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
