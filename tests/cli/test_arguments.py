"""Commands with flags: an example in the help, and mistakes told in one line."""

import pytest

from burnish.entry.arguments import FlagParser
from burnish.errors import ConfigError


@pytest.fixture
def parser() -> FlagParser:
    parser = FlagParser("cook", "make a dish", "cook rice --minutes 12")
    parser.add_argument("dish")
    parser.add_argument("--minutes", type=int)
    return parser


def test_help_shows_an_example(parser):
    assert parser.format_help().endswith("example:\n  burnish cook rice --minutes 12\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [([], "dish"), (["rice", "--minutes", "long"], "invalid int value: 'long'"), (["rice", "--min", "3"], "--min")],
)
def test_mistakes_are_config_errors_that_point_to_the_help(parser, argv, words):
    with pytest.raises(ConfigError) as caught:
        parser.parse_args(argv)
    assert words in str(caught.value) and "`burnish cook --help` shows an example" in str(caught.value)


def test_a_bracket_or_percent_in_an_example_is_plain_text():
    assert "burnish x 'a=[50%]'" in FlagParser("x", "y", "x 'a=[50%]'").format_help()
