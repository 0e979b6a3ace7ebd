"""What a batch shows of its own use."""

import numpy as np
import pytest
import torch

from burnish.algorithms.signal import signal_metrics, spread_within_groups

VOCABULARY = 250_000


@pytest.mark.parametrize(("count", "repeated"), [(4, 1.0), (20, 0.0)], ids=["loops", "differs"])
def test_response_repeats_itself_where_most_of_its_ngrams_occurred_before(count, repeated):
    """Large ids of `count` kinds, 32 tokens: a loop, or nearly all different."""
    ids = VOCABULARY - 1 - torch.arange(32).remainder(count) * 7
    batch = {"responses": ids[None], "response_mask": torch.ones(1, 32), "token_level_scores": torch.zeros(1, 32)}
    assert signal_metrics(batch, [0])["response/repeated_ratio"] == repeated


def test_spread_is_that_within_groups():
    """Two groups of two and one of one, whose scores differ by 2, by 0, and from the others'."""
    scores, groups = np.array([1.0, 3.0, 5.0, 5.0, 100.0]), np.array([0, 0, 1, 1, 2])
    assert spread_within_groups(scores, groups) == (0.5, 0.5)
    assert spread_within_groups(scores, np.arange(5)) is None
