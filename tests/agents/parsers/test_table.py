"""Call formats by name."""

import pytest

from burnish.agents.parsers import FORMATS, OTHER_SPELLINGS, find_parser
from burnish.agents.parsers.base import ToolParser
from burnish.config.rollout import CALL_FORMATS
from burnish.errors import ConfigError


def test_every_format_of_the_configuration_has_a_parser_and_no_other():
    assert set(FORMATS) == set(CALL_FORMATS)
    kinds = {type(find_parser(name)) for name in FORMATS}
    assert len(kinds) == len(FORMATS) and all(issubclass(kind, ToolParser) for kind in kinds)


@pytest.mark.parametrize(("spelling", "name"), OTHER_SPELLINGS.items())
def test_other_spellings_mean_a_format(spelling, name):
    assert type(find_parser(spelling)) is type(find_parser(name))


def test_an_unknown_format_names_the_nearest_and_all():
    with pytest.raises(ConfigError, match="'hermse'.*did you mean hermes.*qwen3_coder"):
        find_parser("hermse")
    with pytest.raises(ConfigError, match="'xyzzy': there is no such format; There are hermes, json"):
        find_parser("xyzzy")


def test_only_gpt_oss_needs_the_token_that_ends_a_turn():
    assert [name for name in FORMATS if find_parser(name).keeps_end] == ["gpt-oss"]
