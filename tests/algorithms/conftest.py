"""Fixtures of the algorithm tests: the golden tolerance, and batches with holes in their masks."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.losses.inputs import PolicyLossInputs, ValueLossInputs
from burnish.algorithms.tally import Metrics, merge
from burnish.config.actor import ActorConfig
from burnish.config.algorithm import AlgorithmConfig
from burnish.config.critic import CriticConfig


@pytest.fixture(scope="session")
def assert_close() -> Callable[[Any, Any], None]:
    """|got - want| <= 1e-5 · max(1, |want|) element by element, NaN and infinities exactly; dictionaries key by key."""

    def check(got: Any, want: Any, where: str = "") -> None:
        if isinstance(want, dict):
            assert set(got) == set(want), where
            for key in want:
                check(got[key], want[key], f"{where}/{key}")
            return
        got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
        assert got.shape == want.shape, where
        finite = np.isfinite(want)
        assert np.array_equal(got[~finite], want[~finite], equal_nan=True), where
        got, want = got[finite], want[finite]
        error = np.abs(got - want) / np.maximum(1, np.abs(want))
        assert (error <= 1e-5).all(), f"{where}: off by {error.max()}"  # a NaN is not <= either

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
            counts=LossCounts.of(mask),
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
        return ValueLossInputs(vpreds, values, returns, mask, CriticConfig(**config), LossCounts.of(mask), 11)

    return make


@pytest.fixture(scope="session")
def counts_of() -> Callable[..., LossCounts]:
    """The counts a recorded case was given, or those of its mask."""

    def counts(given: dict[str, Any], mask: torch.Tensor) -> LossCounts:
        here = LossCounts.of(mask)
        tokens, sequences = given.get("batch_num_tokens"), given.get("global_batch_size")
        return LossCounts(tokens or here.tokens, sequences or here.sequences)

    return counts


def slope_of(loss_function: Any, inputs: Any, name: str) -> tuple[torch.Tensor, Metrics, torch.Tensor]:
    leaf = getattr(inputs, name).detach().clone().requires_grad_()
    loss, metrics = loss_function(dataclasses.replace(inputs, **{name: leaf}))
    loss.backward()
    return loss.detach(), metrics, leaf.grad


@pytest.fixture(scope="session")
def gradient() -> Callable[..., tuple[torch.Tensor, Metrics, torch.Tensor]]:
    """Loss, metrics and ∂loss/∂name of a loss over one micro-batch."""
    return slope_of


@pytest.fixture(scope="session")
def take() -> Callable[..., Any]:
    """A micro-batch of some rows; counts stay those of the mini-batch."""

    def some(inputs: Any, rows: Any) -> Any:
        fields = ((f.name, getattr(inputs, f.name)) for f in dataclasses.fields(inputs))
        return dataclasses.replace(inputs, **{n: t[rows] for n, t in fields if isinstance(t, torch.Tensor)})

    return some


@pytest.fixture(scope="session")
def assert_same_in_parts(take: Callable[..., Any]) -> Callable[..., None]:
    """Loss, gradient and metrics of a mini-batch are the sums of its micro-batches', given as lists of rows."""

    def check(loss_function: Any, inputs: Any, name: str, parts: Sequence[list[int]]) -> None:
        loss, metrics, slope = slope_of(loss_function, inputs, name)
        summed, tallies, pieces = torch.zeros_like(loss), [], torch.full_like(slope, math.nan)
        for part in parts:
            rows = torch.tensor(part, dtype=torch.long)
            of_part, tally, pieces[rows] = slope_of(loss_function, take(inputs, rows), name)
            summed, tallies = summed + of_part, [*tallies, tally]
        torch.testing.assert_close(summed, loss)
        torch.testing.assert_close(pieces, slope)
        assert merge(tallies) == pytest.approx(merge([metrics]), rel=1e-9, abs=1e-12)

    return check


@pytest.fixture(scope="session")
def with_junk() -> Callable[..., Any]:
    """The same inputs, with something else on every token the policy did not sample: name → what."""

    def replace(inputs: Any, junk: dict[str, Any]) -> Any:
        outside = inputs.response_mask == 0
        assert outside.any()
        return dataclasses.replace(inputs, **{n: getattr(inputs, n).masked_fill(outside, j) for n, j in junk.items()})

    return replace


@pytest.fixture(params=[math.nan, math.inf, -1e30, 12.5], ids=str)
def junk(request: pytest.FixtureRequest) -> float:
    """Something an observation token might hold."""
    return request.param
