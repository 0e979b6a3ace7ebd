"""Short answers: the last `<answer>…</answer>` must be one of the row's right answers (docs/qa-rewards.md).

Both sides are normalised alike: the plain form of characters that Unicode has in several (NFKC), small letters, no
punctuation, no a/an/the, single blanks. A right answer of which nothing is left by that ("The The", "A") is compared as
it is written, ignoring case and blanks around it: else an empty answer would be right.

How it differs from the scorers of the field, whose results the tests hold:
- only what the policy wrote is read, so one answer is enough, and the example answer of a prompt is never taken; the
  answer begins at the nearest opening tag;
- punctuation is Unicode's, and characters have their plain form (“Hamlet” is Hamlet);
- `subem` does not match inside words ("ater" in "theater"), nor a right answer that normalises to nothing;
- a row whose right answers are all blank is an error, and a target given as text is one answer, not its letters;
- for the form, no assistant marker is looked for, special tokens do not invalidate (decoded text has none), and tags
  within a retrieved passage are not held against the policy.
"""

import numbers
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from burnish.rewards.contract import unboxed
from burnish.rewards.scores.answer_tag import CLOSE, OPEN, last_answer, tagged


class _WithoutPunctuation(dict[int, int | None]):
    """For str.translate; filled as characters come by."""

    def __missing__(self, code: int) -> int | None:
        # Unicode calls some of ASCII's marks symbols, the minus too, and two apostrophes letters.
        mark = chr(code) in string.punctuation + "−ʼʻ" or unicodedata.category(chr(code)).startswith("P")
        return self.setdefault(code, None if mark else code)


MOST_TAGS = 10
Method = Literal["em", "subem", "f1"]

_TAG = re.compile(r"<(/?)(think|search|information|answer)>")
_WITHOUT_PUNCTUATION = _WithoutPunctuation()
_PIECES = re.compile(r"\s+|\S{1,200}")  # NFKC takes quadratic time for long runs of accents
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_IN_WORD = r"[\w\u0300-\u036f]"  # \w lacks accents that are separate characters
# Scripts that put no blanks between words (Thai to Lao, Burmese, Khmer, kana, Chinese): any place is a word's end.
_NO_BLANKS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
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


check = reference


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


def gold_answers(ground_truth: Any) -> list[str]:
    """The right answers: `{"target": …}` or the target itself, one text or several."""
    where, target = "reward_model.ground_truth", ground_truth
    if isinstance(target, Mapping):
        if target.get("target") is None:
            raise ValueError(f"{where}={ground_truth!r}: it has no 'target', which is what qa_em reads")
        target = target["target"]
    target = unboxed(target)  # tables hold lists as arrays
    several = target if isinstance(target, Sequence) and not isinstance(target, str | bytes) else [target]
    if any(isinstance(one, bool) or not isinstance(one, str | numbers.Integral) for one in several):
        example = '{"target": ["Paris", "City of Paris"]}'
        problem = f"qa_em needs the right answer as text, or a list of texts ({example})"
        raise ValueError(f"{where}={ground_truth!r}: {problem}")
    answers = [text for one in several if (text := str(one).strip())]
    if not answers:
        raise ValueError(f"{where}={ground_truth!r}: no right answer in it; qa_em needs one with text")
    return answers


def normalise(text: str) -> str:
    """The words that are compared, with single blanks between."""
    if not text.isascii():
        text = "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECES.findall(text))
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def is_exact(answer: str, golds: Iterable[str]) -> bool:
    said = normalise(answer)
    return any(said == plain if (plain := normalise(gold)) else _same_text(answer, gold) for gold in golds)


def contains_any(text: str, golds: Iterable[str]) -> bool:
    """Whether the text contains one of them as whole words; one of which normalising leaves nothing does not count."""
    said = normalise(text)
    return any(plain in said and _as_words(plain).search(said) for gold in golds if (plain := normalise(gold)))


def token_f1(answer: str, golds: Iterable[str]) -> float:
    """Harmonic mean of precision and recall of the answer's words, for the gold answer that it is nearest to."""
    said = Counter(normalise(answer).split())
    words = {gold: normalise(gold).split() for gold in golds}

    def f1(gold: str) -> float:
        if not words[gold]:
            return float(_same_text(answer, gold))
        return 2 * (said & Counter(words[gold])).total() / (said.total() + len(words[gold]))

    return max(map(f1, words))


def _as_words(plain: str) -> re.Pattern[str]:
    before = "" if _NO_BLANKS.match(plain[0]) else f"(?<!{_IN_WORD})"
    after = "" if _NO_BLANKS.match(plain[-1]) else f"(?!{_IN_WORD})"
    return re.compile(before + re.escape(plain) + after)


def _same_text(answer: str, gold: str) -> bool:
    return answer.strip().lower() == gold.strip().lower()
