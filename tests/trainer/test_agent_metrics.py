"""Figures of a step from what agent loops report of each trajectory."""

import numpy as np
import pytest
import torch

from burnish.trainer.report import agent_metrics


def test_whole_numbers_have_a_mean_and_extremes_and_others_a_mean():
    reported = [{"env/actions": 1, "env/ratio": 0.5}, {"env/actions": 4, "env/ratio": 1.0}]
    assert agent_metrics(reported) == {
        "env/actions/mean": 2.5, "env/actions/max": 4.0, "env/actions/min": 1.0, "env/ratio": 0.75,
    }  # fmt: skip


def test_one_that_is_sometimes_a_fraction_is_no_count():
    assert agent_metrics([{"a/b": 1}, {"a/b": 0.5}]) == {"a/b": 0.75}


def test_trajectories_that_do_not_report_something_do_not_count():
    assert agent_metrics([{"a/b": 3.0}, {}, {"c/d": 1.0}]) == {"a/b": 3.0, "c/d": 1.0}
    assert agent_metrics([{}, {}]) == agent_metrics([]) == {}


def test_a_name_without_a_group_is_filed_under_agent():
    assert agent_metrics([{"steps": 2.0}]) == {"agent/steps": 2.0}


def test_tool_calls_are_counted_elsewhere():
    assert agent_metrics([{"num_tool_calls": 3, "tools/calls": 3.0}]) == {"tools/calls": 3.0}


@pytest.mark.parametrize("value", ["text", None, [1], {"a": 1}])
def test_what_is_no_number_is_left_out(value):
    assert agent_metrics([{"a/b": value, "c/d": 1.0}]) == {"c/d": 1.0}


def test_numbers_may_be_those_of_arrays():
    reported = [{"a/b": np.float32(0.5), "c/d": np.int64(2)}, {"a/b": torch.tensor(1.5), "c/d": torch.tensor(4)}]
    assert agent_metrics(reported) == {"a/b": 1.0, "c/d/mean": 3.0, "c/d/max": 4.0, "c/d/min": 2.0}
