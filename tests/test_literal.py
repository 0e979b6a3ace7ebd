"""Texts of files on a terminal: what is escaped, and what stays."""

import pytest

from burnish.literal import literal, one_line


def test_lines_tabs_and_other_scripts_stay():
    assert literal("a\n\tb é 漢 🙂 👩‍🔬") == "a\n\tb é 漢 🙂 👩‍🔬"
    assert one_line("a\nb\r\n\tc") == "a\\nb\\x0d\\n\tc"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x00\x7f\x9b31m\r\b", "\\x00\\x7f\\x9b31m\\x0d\\x08"),
        ("\u061c\u200f\u202egnp\u2066", "\\u061c\\u200f\\u202egnp\\u2066"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_control_characters_are_shown_as_codes(text, shown):
    assert literal(text) == one_line(text) == shown
