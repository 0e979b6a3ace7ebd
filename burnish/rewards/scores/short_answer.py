"""Short answers in words: the gold answers of a row, and how an answer is compared with them.

Both sides are normalised alike: the plain form of characters that Unicode has in several (NFKC), small letters, no
punctuation, no a/an/the, single blanks. A gold answer of which nothing is left by that ("The The", "A") is compared as
it is written, ignoring case and blanks around it: else an empty answer would be right.
"""

import numbers
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from burnish.rewards.contract import unboxed


class _WithoutPunctuation(dict[int, int | None]):
    """For str.translate; filled as characters come by."""

    def __missing__(self, code: int) -> int | None:
        # Unicode calls some of ASCII's marks symbols, the minus too, and two apostrophes letters.
        mark = chr(code) in string.punctuation + "−ʼʻ" or unicodedata.category(chr(code)).startswith("P")
        return self.setdefault(code, None if mark else code)


_WITHOUT_PUNCTUATION = _WithoutPunctuation()
_PIECES = re.compile(r"\s+|\S{1,200}")  # NFKC takes quadratic time for long runs of accents
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_IN_WORD = r"[\w\u0300-\u036f]"  # \w lacks accents that are separate characters
# Scripts that put no blanks between words (Thai to Lao, Burmese, Khmer, kana, Chinese): any place is a word's end.
_NO_BLANKS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


def gold_answers(ground_truth: Any) -> list[str]:
    """The right answers: `{"target": …}` or the target itself, one text or several."""
    target = ground_truth
    if isinstance(target, Mapping):
        if target.get("target") is None:
            raise ValueError(
                f"reward_model.ground_truth={ground_truth!r}: it has no 'target', which is what qa_em reads"
            )
        target = target["target"]
    target = unboxed(target)  # tables hold lists as arrays
    several = target if isinstance(target, Sequence) and not isinstance(target, str | bytes) else [target]
    if any(isinstance(one, bool) or not isinstance(one, str | numbers.Integral) for one in several):
        raise ValueError(
            f"reward_model.ground_truth={ground_truth!r}: qa_em needs the right answer as text, or a list of texts "
            '({"target": ["Paris", "City of Paris"]})'
        )
    answers = [text for one in several if (text := str(one).strip())]
    if not answers:
        raise ValueError(
            f"reward_model.ground_truth={ground_truth!r}: no right answer in it; qa_em needs one with text"
        )
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
