"""Sampling parameters, request seeds and the stateless noise."""

import subprocess
import sys

import numpy as np
import pytest

from burnish.errors import ConfigError
from burnish.rollout.base import Sampling, request_seed, uniforms

SEED = 7205032646610026369
NOISE = [0.6524484863740322, 0.8807895827318415, 0.16521097538474916]


def test_params_round_trip_without_the_seed_and_take_what_loops_write():
    sampling = Sampling(temperature=0.5, top_k=3, max_tokens=7, stop=("a", "b"), stop_token_ids=(4,), seed=9)
    params = sampling.to_params()
    assert "seed" not in params
    assert Sampling.from_params(params | {"seed": 9}) == sampling
    assert Sampling.from_params({"max_new_tokens": 5, "logprobs": True}) == Sampling(max_tokens=5)
    assert Sampling.from_params({"do_sample": False, "temperature": 0.9}).greedy
    assert Sampling.from_params({"stop": "</answer>"}).stop == ("</answer>",)
    assert Sampling.from_params({"stop": ["x"], "stop_token_ids": None}) == Sampling(stop=("x",))
    with pytest.raises(ConfigError, match=r"unknown sampling parameter 'temprature' \(nearest known: 'temperature'"):
        Sampling.from_params({"temprature": 0.5})


@pytest.mark.parametrize(
    "name,value,allowed",
    [
        ("temperature", -0.1, "0 .greedy., or at least 0.001"),
        ("temperature", 1e-40, "0 .greedy., or at least 0.001"),
        ("temperature", float("nan"), "0 .greedy., or at least 0.001"),
        ("top_k", -2, "-1 .off."),
        ("top_p", 0.0, "above 0, at most 1"),
        ("top_p", 1.5, "above 0, at most 1"),
        ("min_p", 2.0, "from 0 to 1"),
        ("max_tokens", 0, "at least 1"),
        ("stop", ("",), "non-empty strings"),
    ],
)
def test_values_are_checked(name, value, allowed):
    with pytest.raises(ConfigError, match=f"sampling parameter {name}=.*{allowed}"):
        Sampling(**{name: value})


def test_request_seed_depends_on_every_part():
    base = (1, "train", 2, 3, 4)
    others = [(*base[:i], other, *base[i + 1 :]) for i, other in enumerate((2, "val", 3, 4, 5))]
    assert len({request_seed(*parts) for parts in [base, *others, (1, "train", 23, 4, 0), (1, "train", 2, 34, 0)]}) == 8
    assert request_seed(*base) == request_seed(np.int64(1), "train", np.int64(2), 3, 4)


def test_seeds_and_noise_are_the_same_on_every_machine():
    assert request_seed(1, "train", 2, 3, 4) == SEED
    assert uniforms([0, 1, SEED], [0, 5, 9]).tolist() == NOISE


def test_noise_is_elementwise_and_uniform():
    seeds = [request_seed(0, "n", i, 0, 0) for i in range(200)]
    grid = np.stack([uniforms(seeds, [position] * 200) for position in range(200)])
    assert grid.min() >= 0 and grid.max() < 1
    assert grid[7, 5] == uniforms([seeds[5]], [7])[0]
    counts, _ = np.histogram(grid, bins=100, range=(0, 1))
    assert ((counts - 400) ** 2 / 400).sum() < 160  # chi-square, 99 degrees of freedom: p = 1e-4
    for flat, shifted in [(grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])]:
        assert abs(np.corrcoef(flat.ravel(), shifted.ravel())[0, 1]) < 0.02


def test_the_contract_and_the_engine_table_import_no_torch():
    code = "import sys, burnish.rollout, burnish.rollout.base; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
