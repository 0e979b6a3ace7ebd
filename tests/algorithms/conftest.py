"""Fixtures of the algorithm tests: the golden tolerance, and batches with holes in their masks."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.aggregate import Counts
from burnish.algorithms.losses.inputs import PolicyLossInputs, ValueLossInputs
from burnish.config.actor import ActorConfig
from burnish.config.algorithm import AlgorithmConfig
from burnish.config.critic import CriticConfig


@pytest.fixture(scope="session")
def assert_close() -> Callable[[Any, Any], None]:
    """|got - want| <= 1e-5 · max(1, |want|), element by element, NaN equal to NaN; dictionaries key by key."""

    def check(got: Any, want: Any, where: str = "") -> None:
        if isinstance(want, dict):
            assert set(got) == set(want), where
            for key in want:
                check(got[key], want[key], f"{where}/{key}")
            return
        got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
        assert got.shape == want.shape, where
        assert np.array_equal(np.isnan(got), np.isnan(want)), where
        error = np.nan_to_num(np.abs(got - want) / np.maximum(1, np.abs(want)))
        assert error.max(initial=0) <= 1e-5, f"{where}: off by {error.max()}"

    return check


@pytest.fixture(scope="session")
def make_advantage_inputs() -> Callable[..., AdvantageInputs]:
    """AdvantageInputs from lists; keyword arguments of the configuration by their key."""

    def make(rewards: Any, mask: Any, uids: Any = None, values: Any = None, **config: Any) -> AdvantageInputs:
        rewards = torch.as_tensor(rewards, dtype=torch.float32)
        return AdvantageInputs(
            token_level_rewards=rewards,
            response_mask=torch.as_tensor(mask),
            uids=np.asarray(range(len(rewards)) if uids is None else uids, dtype=object),
            config=AlgorithmConfig(**config),
            values=None if values is None else torch.as_tensor(values, dtype=torch.float32),
        )

    return make


@pytest.fixture(scope="session")
def policy_batch() -> Callable[..., PolicyLossInputs]:
    """A random batch for a policy loss: holes in the mask, off-policy ratios, an entropy and a reference."""

    def make(seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> PolicyLossInputs:
        rows, width = 6, 7
        random = torch.Generator().manual_seed(seed)

        def normal(scale: float = 1.0) -> torch.Tensor:
            return scale * torch.randn(rows, width, generator=random, dtype=dtype)

        mask = (torch.rand(rows, width, generator=random) < 0.7).long()
        old = normal() - 1
        return PolicyLossInputs(
            old_log_prob=old,
            log_prob=old + normal(0.4),
            advantages=normal(),
            response_mask=mask,
            config=ActorConfig(**{"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, **config}),
            counts=Counts.of(mask),
            max_response_length=11,
            rollout_is_weights=normal().exp(),
            entropy=normal().exp(),
            ref_log_prob=old + normal(0.3),
        )

    return make


@pytest.fixture(scope="session")
def value_batch() -> Callable[..., ValueLossInputs]:
    """A random batch for the value loss."""

    def make(seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> ValueLossInputs:
        rows, width = 6, 7
        random = torch.Generator().manual_seed(seed)
        mask = (torch.rand(rows, width, generator=random) < 0.7).long()
        vpreds, values, returns = torch.randn(3, rows, width, generator=random, dtype=dtype)
        config = {"loss_agg_mode": "token-mean", **config}
        return ValueLossInputs(vpreds, values, returns, mask, CriticConfig(**config), Counts.of(mask), 11)

    return make


@pytest.fixture(params=[math.nan, math.inf, -1e30, 12.5], ids=str)
def junk(request: pytest.FixtureRequest) -> float:
    """Something an observation token might hold."""
    return request.param
