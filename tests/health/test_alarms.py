"""Runs that learn have no finding above a note, on the embedded models: the quickstarts and every recipe."""

import pytest

from tests.health.alarms import CASES


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_run_that_learns_raises_no_alarm(name, tmp_path):
    outcome = CASES[name](tmp_path, 1)
    assert outcome.verdict.startswith("learned") and not outcome.alarms, outcome
