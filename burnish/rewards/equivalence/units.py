r"""Units and other words behind a number: `12\text{ cm}^2` is 12 with the unit cm^2, `7\%` is 7 with a percent sign.

Words in \text{…} behind an expression are its unit, unless they say more than a unit does (`5\text{ or 6}`); without
\text, only the words known here (a single letter could be a variable, but not in m/s). Words for a magnitude multiply:
`5\text{ million dollars}` is 5000000.
"""

import re

NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty".split()
    )
}
_MAGNITUDES = {
    **{"dozen": "12", "hundred": "10^{2}", "thousand": "10^{3}", "million": "10^{6}", "billion": "10^{9}"},
    **{"trillion": "10^{12}", "tenth": "10^{-1}", "hundredth": "10^{-2}", "thousandth": "10^{-3}"},
    **{"millionth": "10^{-6}", "billionth": "10^{-9}"},
}

#: One name for each unit, the first of its line; plural forms are found by their singular.
_UNITS = """
    mm millimeter millimetre; cm centimeter centimetre; m meter metre; km kilometer kilometre; inch in inche
    foot ft feet; yard yd; mile mi; mg milligram; g gram; kg kilogram; pound lb; ounce oz; ml milliliter millilitre
    litre l liter; second s sec; minute min; hour h hr; year yr; mile/hour mph; km/hour kmh kph
    am; pm; day; week; month; cent; dollar; acre; gallon; radian; degree
"""
_SYNONYMS = {name: names[0] for names in map(str.split, re.split("[;\n]", _UNITS)) for name in names}
_ALSO = set(
    "unit square cubic sq cu per usd euro rupee yen degree percent percentage person people student child children man "
    "men woman women coin ball card book apple ticket way time point digit number value integer solution triangle "
    "rectangle edge vertex vertices piece game page word term root side of the".split()
)
_ALONE = {name for name in _SYNONYMS if len(name) > 1} | _ALSO | _MAGNITUDES.keys()  # known without \text
_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}

_EXPONENT = r"(?:\^(?:\{(-?\d)\}|(\d)))?"
_IN_TEXT = re.compile(rf"(.*\S)\s*\\text\{{([^{{}}]*)\}}{_EXPONENT}", re.DOTALL)
_PLAIN = re.compile(rf"(.*?[\d)}}%!])\s*([A-Za-z][A-Za-z. /]*){_EXPONENT}", re.DOTALL)
_ONLY_WORDS = re.compile(r"[A-Za-z\s./'^-]+(?:\^\d)?")
_SAYS_MORE = re.compile(r"\b(?:or|and|to|is|are|was|not|no|than|if|but|minus|plus|through|mod|modulo)\b", re.IGNORECASE)


def split_unit(text: str) -> tuple[str, str | None, bool]:
    """The expression, its unit where that is known, and whether there is a percent sign."""
    unit = None
    while found := _IN_TEXT.fullmatch(text) or _PLAIN.fullmatch(text):
        in_text = found.re is _IN_TEXT
        words = " ".join(found[2].casefold().replace(".", "").split())
        power = found[3] or found[4]
        canonical = _canonical(words + (f"^{power}" if power else ""))
        known = all(_singular(word) in _ALONE or word in _ALONE for word in re.split(r"[ /]+", words) if word)
        if not (is_unit(words) if in_text else (canonical and "/" in canonical) or known):
            break
        text = found[1].rstrip("\\ ,")
        first, _, rest = words.partition(" ")
        if factor := _MAGNITUDES.get(_singular(first)):
            text, canonical = f"({text})*{factor}", _canonical(rest)
        if _singular(words) in ("percent", "percentage"):
            return text, unit, True
        unit = canonical or unit
    if text.endswith("%"):
        return text.rstrip("% "), unit, True
    return text, unit, False


def is_unit(words: str) -> bool:
    """Whether the words in a \\text{…} can be no more than a unit."""
    return _ONLY_WORDS.fullmatch(words) is not None and not _SAYS_MORE.search(words)


def _canonical(words: str) -> str | None:
    """One name for a unit, its powers and quotients: `square centimeters` and `cm^2` are both cm^2."""
    parts = []
    for part in re.split(r"\s*/\s*|\s+per\s+", words.strip()):
        names, _, power = part.partition("^")
        shape, known = (f"^{power}" if power else ""), []
        for word in names.split():
            if word in _POWERS:
                shape = _POWERS[word]
            else:
                known.append(_SYNONYMS.get(_singular(word)))
        if len(known) != 1 or known[0] is None:
            return None
        parts.append(known[0] + shape)
    return "/".join(parts)


def _singular(word: str) -> str:
    return word if word in _SYNONYMS else word.removesuffix("s")
