"""Exact match with rewards for the form of a searching response; `qa_em.compute_score` comes here when they are set.

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

How it differs from the scorer of the field, besides what qa_em lists: no assistant marker is looked for, special tokens
do not invalidate (decoded text has none), tags within a retrieved passage are not held against the policy, and a target
given as text is one answer, not its letters.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from burnish.rewards.contract import unboxed
from burnish.rewards.scores.answer_tag import last_answer
from burnish.rewards.scores.short_answer import contains_any, is_exact, token_f1

_TAG = re.compile(r"<(/?)(think|search|information|answer)>")
# Block → what may come before it; "" is the start of the response.
_AFTER = {"think": ("", "search"), "search": ("think",), "answer": ("think",)}


class FormatScores(NamedTuple):
    """The rewards of the table."""

    structure: float
    final: float
    retrieval: float
    score: float


def score_with_format(text: str, golds: Sequence[str], retrieved: Any, scores: FormatScores) -> dict[str, float | str]:
    """The table for one response; `retrieved` is None where the trajectory says nothing of it."""
    passages = None if retrieved is None else _passages(retrieved)
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


def _passages(retrieved: Any) -> list[str]:
    retrieved = unboxed(retrieved)  # tables hold lists as arrays
    if not isinstance(retrieved, list | tuple) or not all(isinstance(passage, str) for passage in retrieved):
        raise ValueError(f"extra_info.retrieved={retrieved!r:.200}: must be a list of texts, one for each search")
    return list(retrieved)
