"""Descriptions are found in whichever of the usual ways a docstring is written."""

import pytest

from burnish.agents.tools.docstring import read_docstring

GOOGLE = """Find the weather
    of a city.

    It asks a server. days: not here

    Args:
        city (str): its name,
            in English
        days (int, optional): how many
            `days` ahead

    Returns:
        str: city: the weather
    """
NUMPY = """
    Find the weather of a city.

    Parameters
    ----------
    city : str
        its name,
        in English
    days : int
        how many `days` ahead

    Returns
    -------
    str
        the weather
    """
REST = """Find the weather of a city.

    :param city: its name,
        in English
    :param int days: how many `days` ahead
    :returns: the weather
    """
PLAIN = """Find the weather of a city.

    city: its name, in English
    days: how many `days` ahead
    """
BULLETS = """Find the weather of a city.
    - `city`: its name, in English
    - days: how many `days` ahead
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST, PLAIN, BULLETS])
def test_description_and_parameters(text):
    assert read_docstring(text, ["city", "days"]) == (
        "Find the weather of a city.",
        {"city": "its name, in English", "days": "how many `days` ahead"},
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ("", {})),
        ("", ("", {})),
        ("city: it is about", ("city: it is about", {})),
        ("Args:\n    city: where", ("", {"city": "where"})),
        ("Do it.\n\nArgs:\n    town: where\n    city: there", ("Do it.", {"city": "there"})),
        ("Do it.\n\nArgs:\n    city:\n", ("Do it.", {"city": ""})),
    ],
)
def test_missing_docstring_parts_are_not_invented(text, expected):
    assert read_docstring(text, ["city"]) == expected
