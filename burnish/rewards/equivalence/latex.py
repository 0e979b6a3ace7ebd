r"""One spelling for what LaTeX can write in many: `tidy(r"$\left( 3,\ \dfrac 12 \right)$.")` is `(3,\frac12)`.

It removes what only shapes the page, writes every command in one form and drops currency and degree signs. Nothing here
judges: two answers that differ after this may still be equal.
"""

import re

_CHARACTERS = str.maketrans(
    {
        **{"−": "-", "–": "-", "﹣": "-", "－": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/"},
        **{"π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "°": "", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap "},
        **{"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∅": r"\emptyset ", "≈": r"\approx "},
        **{"θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "⟨": "(", "⟩": ")", "％": "%", "，": ",", "\xa0": " "},
        **{"½": r"\frac12 ", "⅓": r"\frac13 ", "¼": r"\frac14 ", "¾": r"\frac34 ", "⅔": r"\frac23 "},
        **{"²": "^{2}", "³": "^{3}", "⁴": "^{4}", "£": "", "€": "", "¢": "", '"': "", "“": "", "”": ""},
    }
)
_BLANK = r"(?![a-zA-Z])\s*"  # a command's name ends here, and eats the space behind it

# In this order. Commands lose what TeX itself ignores; synonyms get one name.
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<!\\)%[^\n]*\n", " "),  # a comment
        (r"\\?\$|\\(?:pounds|euro|cent|textdollar)(?![a-zA-Z])|\\text\{\s*\\?\$\s*\}", ""),
        (r"\\(?:hspace|vspace|mspace|mkern|hskip)\*?\s*(?:\{[^{}]*\}|-?[\d.]+\s*[a-z]{2})", ""),
        (r"\\h?phantom\s*(?:\{[^{}]*\}|[^\\{}])", ""),
        (r",\s*\\!\s*(?=\d{3}(?!\d))|(?<=\d)\{,\}(?=\d{3}(?!\d))", ""),  # thousands, said to be such
        (r"(?<!\\)\\[!,;:>]", ""),
        (r"\\(?:quad|qquad|displaystyle|textstyle|scriptstyle|limits|nolimits|strut|mathstrut|enspace)" + _BLANK, " "),
        (r"\\(?:left|right|middle|[bB]ig{1,2}[lrm]?)(?![a-zA-Z])\s*\.?", ""),
        (r"\\[dtc]frac" + _BLANK, r"\\frac "),
        (r"\\(?:leq|leqslant|leqq)" + _BLANK, r"\\le "),
        (r"\\(?:geq|geqslant|geqq)" + _BLANK, r"\\ge "),
        (r"\\(?:neq|not\s*=)" + _BLANK.removeprefix("(?![a-zA-Z])"), r"\\ne "),
        (r"\\lt" + _BLANK, "<"),
        (r"\\gt" + _BLANK, ">"),
        (r"\\(?:lbrace)" + _BLANK, r"\\{"),
        (r"\\(?:rbrace)" + _BLANK, r"\\}"),
        (r"\\(?:langle|lparen)" + _BLANK, "("),
        (r"\\(?:rangle|rparen)" + _BLANK, ")"),
        (r"\\lbrack" + _BLANK, "["),
        (r"\\rbrack" + _BLANK, "]"),
        (r"\\(?:lvert|rvert|vert|mid)" + _BLANK, "|"),
        (r"\\(?:varnothing)" + _BLANK, r"\\emptyset "),
        (r"\\(?:cdot|times|ast)" + _BLANK, "*"),
        (r"\\div" + _BLANK, "/"),
        (r"\\colon" + _BLANK, ":"),
        (r"\\imath" + _BLANK, "i"),
        (r"\\(?:mathbf|mathit|boldsymbol|bm)\s*\{\s*([a-zA-Z])\s*\}", r" \1 "),
        (r"\\(?:mbox|hbox|textrm|textnormal|textbf|textit|textsf|texttt|mathrm|mathit|mathsf|mathbf|emph)\s*(?=\{)",
         r"\\text"),
        (r"\{\s*\\(?:rm|bf|it)\b\s*([^{}]*)\}", r"\\text{\1}"),
        (r"\\(?:overline|overleftrightarrow|widehat)\s*\{\s*([A-Z]{2,})\s*\}", r"\1"),  # the segment AB
        (r"\{\s*,\s*\}", ","),
        (r"\s*\\text\{\s*,?\s*(?:and|or)\s*,?\s*\}\s*", ", "),
        (r"(?<=[\d})%!])\s*,?\s*\b(?:and|or)\b\s*(?=[-\d\\(\[.])", ", "),
        (r"(?<![a-zA-Z\\])([a-zA-Z]),?\s+(?:and|or)\s+([a-zA-Z])(?![a-zA-Z])", r"\1, \2"),
        (r"(?:,\s*)+,", ","),
        (r"(?<=\d),\s+(?=[\d.])", ";"),  # 1, 234 is two numbers, 1,234 one
        (r"(\\(?:sin|cos|tan|cot|sec|csc))\s*[({]?\s*(\d+(?:\.\d+)?)\s*\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))\s*[)}]?",
         r"\1(\2\\pi/180)"),
        (r"\^\s*(?:\{\s*\\(?:circ|degree)\s*\}|\\(?:circ|degree)(?![a-zA-Z]))|\\degree(?![a-zA-Z])", r"\\degree "),
        (r"\\degree\s*(?:[CF](?=\s*(?:$|[,.;)])))?", ""),
        (r"(?<!\\)\\(?=\s|$)|~", " "),
        (r"\{([^{}\\]*)\\choose(?![a-zA-Z])([^{}\\]*)\}", r"\\binom{\1}{\2}"),
        (r"\\binom\s*(\d)\s*(\d)", r"\\binom{\1}{\2}"),
        (r"^([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})$", r"\1*10^{\2}"),
        (r"\\%", "%"),
        (r"^\s*\\approx(?![a-zA-Z])", ""),
        (r"\\text\s*\{\s*\}", ""),
        (r"\\text\{(i)\}", r" \1"),
        (r"(?<![\d})%])(?<![\d})%] )\\text\{([a-zA-Z])\}", r" \1"),  # a choice; behind a number it is a unit
        (r"\\text\{([\dA-Z]+)\}(?=_)", r"\1"),  # digits of another base
    )
)  # fmt: skip
_FORMULA = re.compile(r"\\\((.*)\\\)|\\\[(.*)\\\]|\$\$(.*)\$\$|\$(.*)\$", re.DOTALL)
_FINAL = ".,;:?*"  # ends a sentence; "!" is a factorial
_SPACE = re.compile(r"(\\[a-zA-Z]+ (?=[a-zA-Z])|\d (?=\d)|[a-zA-Z] (?=[a-zA-Z]))|\s+")
_SPACED_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?: \d{3})+(?![\d])")


def tidy(text: str) -> str:
    """`text` in one spelling. A space is left only where it separates: two numbers, two words, a command and a word."""
    text = _trimmed(text)
    while whole := _FORMULA.fullmatch(text):
        text = _trimmed(next(group for group in whole.groups() if group is not None))
    text = text.translate(_CHARACTERS)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    # Spaces that separate nothing go, except inside \\text{…}, where they belong to words.
    parts = re.split(r"(\\text\{[^{}]*\})", " ".join(text.split()))
    for i in range(0, len(parts), 2):
        spaced = _SPACE.sub(lambda match: match[1] or "", parts[i])
        parts[i] = _SPACED_THOUSANDS.sub(lambda match: match[0].replace(" ", ""), spaced)
    text = _trimmed("".join(parts))
    while text.startswith("{") and closing(text, 0) == len(text) - 1:
        text = _trimmed(text[1:-1])
    return text


_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|.", re.DOTALL)


def braced(text: str) -> str:
    r"""`text` with braces around arguments that TeX takes without: \sqrt[3]2, \frac\pi2, x^\frac12. Malformed text
    stays as it is. It is read from the right, so that an argument is whole when the command before it is met."""
    units: list[str] = []  # what follows: characters, groups, and commands with their arguments; the next one last

    def until(end: str) -> str:
        found = []
        while units[-1] != end:
            found.append(units.pop())
        return "".join(found) + units.pop()

    def argument() -> str:
        while units[-1].isspace():
            units.pop()
        if units[-1][0] != "{" and not units[-1].isalnum() and units[-1][0] != "\\":
            raise IndexError
        return units.pop() if units[-1][0] == "{" else f"{{{units.pop()}}}"

    try:
        for token in reversed(_TOKEN.findall(text)):
            if token == "{":
                token += until("}")
            elif token == "\\frac":
                token += argument() + argument()
            elif token == "\\sqrt":
                if "".join(units[-1:]) == "[":
                    token += units.pop() + until("]")
                token += argument()
            elif token == "^" and "".join(units[-1:]).startswith("\\"):
                token += argument()
            units.append(token)
    except IndexError:  # the text ends too early
        return text
    return "".join(reversed(units))


def _trimmed(text: str) -> str:
    text = text.strip().lstrip("* ")
    while text and (text[-1].isspace() or (text[-1] in _FINAL and text[-2:-1] != "\\")):
        text = text[:-1]
    return text


_BRACKET = re.compile(r"\\.|[(\[{)\]}]", re.DOTALL)


def closing(text: str, start: int) -> int | None:
    r"""Where the bracket that opens at `start` is closed: any of ( [ { \{ by any of ) ] } \}, as intervals mix them."""
    depth = 0
    for bracket in _BRACKET.finditer(text, start):
        closes = bracket[0] in (")", "]", "}", "\\}")
        depth += (bracket[0] in ("(", "[", "{", "\\{")) - closes
        if closes and depth <= 0:
            return bracket.end() - 1 if depth == 0 else None
    return None
