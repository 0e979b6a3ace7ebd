"""What the algorithm tests share: the golden tolerance, and batches with holes in their masks."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from burnish.algorithms.advantages.inputs import AdvantageInputs
from burnish.algorithms.aggregate import LossCounts
from burnish.algorithms.losses.inputs import PolicyLossInputs, ValueLossInputs
from burnish.algorithms.tally import Metrics, merge
from burnish.config.actor import ActorConfig, CriticConfig
from burnish.config.algorithm import AlgorithmConfig

ROWS, WIDTH = 6, 7


def assert_close(got: Any, want: Any, where: str = "") -> None:
    """|got - want| <= 1e-5 · max(1, |want|) element by element, NaN and infinities exactly; dictionaries key by key."""
    if isinstance(want, dict):
        assert set(got) == set(want), where
        for key in want:
            assert_close(got[key], want[key], f"{where}/{key}")
        return
    got, want = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    assert got.shape == want.shape, where
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite], equal_nan=True), where
    got, want = got[finite], want[finite]
    error = np.abs(got - want) / np.maximum(1, np.abs(want))
    assert (error <= 1e-5).all(), f"{where}: off by {error.max()}"  # a NaN is not <= either


def make_advantage_inputs(rewards: Any, mask: Any, uids: Any = None, values: Any = None, **config: Any):
    """AdvantageInputs from lists; keyword arguments of the configuration by their key."""
    rewards = torch.as_tensor(rewards, dtype=torch.float32)
    return AdvantageInputs(
        token_level_rewards=rewards,
        response_mask=torch.as_tensor(mask),
        uids=np.asarray(range(len(rewards)) if uids is None else uids, dtype=object),
        config=AlgorithmConfig(**config),
        values=None if values is None else torch.as_tensor(values, dtype=torch.float32),
    )


def policy_batch(seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> PolicyLossInputs:
    """A random batch for a policy loss: holes in the mask, off-policy ratios, an entropy and a reference."""
    random = torch.Generator().manual_seed(seed)

    def normal(scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(ROWS, WIDTH, generator=random, dtype=dtype)

    mask = (torch.rand(ROWS, WIDTH, generator=random) < 0.7).long()
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


def value_batch(seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> ValueLossInputs:
    """A random batch for the value loss."""
    random = torch.Generator().manual_seed(seed)
    mask = (torch.rand(ROWS, WIDTH, generator=random) < 0.7).long()
    vpreds, values, returns = torch.randn(3, ROWS, WIDTH, generator=random, dtype=dtype)
    config = {"loss_agg_mode": "token-mean", **config}
    return ValueLossInputs(vpreds, values, returns, mask, CriticConfig(**config), LossCounts.of(mask), 11)


def counts_of(given: dict[str, Any], mask: torch.Tensor) -> LossCounts:
    """The counts a recorded case was given, or those of its mask."""
    here = LossCounts.of(mask)
    tokens, sequences = given.get("batch_num_tokens"), given.get("global_batch_size")
    return LossCounts(tokens or here.tokens, sequences or here.sequences)


def gradient(loss_function: Any, inputs: Any, name: str) -> tuple[torch.Tensor, Metrics, torch.Tensor]:
    """Loss, metrics and ∂loss/∂name of a loss over one micro-batch."""
    leaf = getattr(inputs, name).detach().clone().requires_grad_()
    loss, metrics = loss_function(dataclasses.replace(inputs, **{name: leaf}))
    loss.backward()
    return loss.detach(), metrics, leaf.grad


def take(inputs: Any, rows: Any) -> Any:
    """A micro-batch of some rows; counts stay those of the mini-batch."""
    fields = ((f.name, getattr(inputs, f.name)) for f in dataclasses.fields(inputs))
    return dataclasses.replace(inputs, **{n: t[rows] for n, t in fields if isinstance(t, torch.Tensor)})


def assert_same_in_parts(loss_function: Any, inputs: Any, name: str, parts: Sequence[list[int]]) -> None:
    """Loss, gradient and metrics of a mini-batch are the sums of its micro-batches', given as lists of rows."""
    loss, metrics, slope = gradient(loss_function, inputs, name)
    summed, tallies, pieces = torch.zeros_like(loss), [], torch.full_like(slope, math.nan)
    for part in parts:
        rows = torch.tensor(part, dtype=torch.long)
        of_part, tally, pieces[rows] = gradient(loss_function, take(inputs, rows), name)
        summed, tallies = summed + of_part, [*tallies, tally]
    torch.testing.assert_close(summed, loss)
    torch.testing.assert_close(pieces, slope)
    assert merge(tallies) == pytest.approx(merge([metrics]), rel=1e-9, abs=1e-12)


def assert_not_read(loss_function: Any, inputs: Any, names: Sequence[str], junk: Any) -> None:
    """Loss, gradient (by the first of `names`) and metrics stay the same with junk on observation tokens.

    One tensor alone can leak where all together do not.
    """
    loss, metrics, slope = gradient(loss_function, inputs, names[0])
    assert not slope[inputs.response_mask == 0].any() and slope.any()
    for replaced in (names, *([name] for name in names)):
        after = gradient(loss_function, with_junk(inputs, dict.fromkeys(replaced, junk)), names[0])
        assert torch.equal(loss, after[0]) and torch.equal(slope, after[2]), replaced
        assert merge([metrics]) == merge([after[1]]), replaced


def with_junk(inputs: Any, junk: dict[str, Any]) -> Any:
    """The same inputs, with something else on every token the policy did not sample: name → what."""
    outside = inputs.response_mask == 0
    assert outside.any()
    return dataclasses.replace(inputs, **{n: getattr(inputs, n).masked_fill(outside, j) for n, j in junk.items()})
