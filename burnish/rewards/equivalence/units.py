r"""Units and other words behind a number: `12\text{ cm}^2` is 12, `7\%` and `7 percent` are 7 with a percent sign.

Any \text{…} behind an expression is a unit; without \text, only the words known here are (a single letter could be a
variable). Two answers with different units that are both known here are different answers: 5 cm is not 5 m. Unknown
ones say nothing.
"""

import re

NUMBER_WORDS = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty".split()
    )
}

#: One name for each unit; plural forms are found by their singular.
_SYNONYMS = {
    **dict.fromkeys(("mm", "millimeter", "millimetre"), "mm"),
    **dict.fromkeys(("cm", "centimeter", "centimetre"), "cm"),
    **dict.fromkeys(("m", "meter", "metre"), "m"),
    **dict.fromkeys(("km", "kilometer", "kilometre"), "km"),
    **dict.fromkeys(("in", "inch", "inche"), "inch"),
    **dict.fromkeys(("ft", "foot", "feet"), "foot"),
    **dict.fromkeys(("yd", "yard"), "yard"),
    **dict.fromkeys(("mi", "mile"), "mile"),
    **dict.fromkeys(("mg", "milligram"), "mg"),
    **dict.fromkeys(("g", "gram"), "g"),
    **dict.fromkeys(("kg", "kilogram"), "kg"),
    **dict.fromkeys(("lb", "pound"), "pound"),
    **dict.fromkeys(("oz", "ounce"), "ounce"),
    **dict.fromkeys(("ml", "milliliter", "millilitre"), "ml"),
    **dict.fromkeys(("l", "liter", "litre"), "litre"),
    **dict.fromkeys(("s", "sec", "second"), "second"),
    **dict.fromkeys(("min", "minute"), "minute"),
    **dict.fromkeys(("h", "hr", "hour"), "hour"),
    **dict.fromkeys(("yr", "year"), "year"),
    **dict.fromkeys(("mph", "mile per hour"), "mph"),
    **dict.fromkeys(("km/h", "kmh", "kph", "kilometer per hour"), "kmh"),
    **dict.fromkeys(("am", "a m"), "am"),
    **dict.fromkeys(("pm", "p m"), "pm"),
    **{word: word for word in ("day", "week", "month", "cent", "dollar", "acre", "gallon", "radian")},
    "degree": "degree",
}
_ALSO = set(
    "unit square cubic sq cu per usd euro rupee yen degree percent percentage person people student child children man "
    "men woman women coin ball card book apple ticket way time point digit number value integer solution triangle "
    "rectangle edge vertex vertices piece game page word term root side of the and".split()
)
_ALONE = {name for name in _SYNONYMS if len(name) > 1} | _ALSO  # known without \text
_SHAPE = re.compile(r"\b(?:square|cubic|sq|cu)\b\.?")
_IN_TEXT = re.compile(r"^(.*\S)\s*\\text\{([^{}]*)\}(?:\^(?:\{\d\}|\d))?$", re.DOTALL)
_PLAIN = re.compile(r"^(.*?[\d)}%!])\s*([A-Za-z][A-Za-z. /]*)(?:\^(?:\{[23]\}|[23]))?$", re.DOTALL)


def split_unit(text: str) -> tuple[str, str | None, bool]:
    """(expression, unit or None, whether it is in percent) of a tidied answer."""
    unit = None
    while (found := _IN_TEXT.match(text)) or ((found := _PLAIN.match(text)) and _are_units(found[2])):
        text, words = found[1].rstrip("\\ ,"), found[2]
        if _singular(words) in ("percent", "percentage"):
            return text, unit, True
        unit = _SYNONYMS.get(_singular(words)) or unit
    if text.endswith("%"):
        return text.rstrip("% "), unit, True
    return text, unit, False


def _are_units(words: str) -> bool:
    return all(_singular(word) in _ALONE or word in _ALONE for word in re.split(r"[ ./]+", words.casefold()) if word)


def _singular(words: str) -> str:
    words = " ".join(_SHAPE.sub(" ", words.casefold()).replace(".", " ").split())
    return words if words in _SYNONYMS else " ".join(word.removesuffix("s") for word in words.split())
