"""The advantage estimators: the recorded results, what holds for all of the table, and what each one promises."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from burnish.algorithms.advantages import TABLE, needs_of
from burnish.algorithms.advantages.gae import gae
from burnish.algorithms.advantages.gdpo import gdpo
from burnish.algorithms.advantages.gpg import gpg
from burnish.algorithms.advantages.grpo_passk import grpo_passk
from burnish.algorithms.advantages.inputs import Groups
from burnish.algorithms.advantages.opo import opo
from burnish.algorithms.advantages.reinforce_plus_plus import reinforce_plus_plus
from burnish.algorithms.advantages.remax import remax
from burnish.algorithms.advantages.rloo import rloo
from burnish.errors import BurnishError
from tests.algorithms.helpers import assert_close, make_advantage_inputs
from tests.recorded import each, golden

NAMES = list(TABLE.entries)
# Those that compare the scores of a group. The token baselines weigh tokens: with equal scores they need not be 0.
OUTCOME = [n for n in NAMES if needs_of(n).groups and not needs_of(n).outputs]
# the token baselines have their own file
CASES = [c for c in golden("advantages") if not c["params"]["estimator"].endswith("optimal_token_baseline")]
RECORDED = [case for case in CASES if "raises" not in case["expected"]]
REFUSED = {case["name"]: case for case in CASES if "raises" in case["expected"]}
assert list(REFUSED) == ["gae/mask_sum_one_raises", "grpo_passk/singleton_raises"]
PARTS = ["format_reward", "accuracy_reward"]


def golden_inputs(case):
    """The case as inputs; rewards on observation tokens moved to where they count."""
    given_, params = case["inputs"], case["params"]
    rewards, mask = torch.tensor(given_["token_level_rewards"]), torch.tensor(given_["response_mask"])
    if case["name"].endswith("dense_rewards_also_on_masked"):
        # The reference counts rewards on tokens the policy did not sample. Moved onto the first one it did sample,
        # they count for us too; where they were, they do not.
        assert mask[:, 0].all()
        rewards = torch.zeros_like(rewards).index_copy(1, torch.tensor([0]), rewards.sum(-1, keepdim=True))
    config = {k: v for k, v in params.items() if k in ("gamma", "lam", "norm_adv_by_std_in_grpo") or "gdpo_" in k}
    inputs = make_advantage_inputs(rewards, mask, given_.get("uid"), values=given_.get("values"), **config)
    return dataclasses.replace(
        inputs,
        reward_baselines=torch.tensor(given_["reward_baselines"]) if "reward_baselines" in given_ else None,
        reward_components={name: torch.tensor(part) for name, part in given_.get("reward_components", {}).items()},
    )


@each(RECORDED)
def test_golden(case):
    inputs, name = golden_inputs(case), case["params"]["estimator"]
    mask = inputs.response_mask.bool()
    options = {key: case["params"][key] for key in ("epsilon", "f_norm") if key in case["params"]}
    results = TABLE.load(name)(inputs, **options)
    for got, kind in zip(results, ("advantages", "returns"), strict=True):
        want = torch.tensor(case["expected"][kind])
        if name == "rloo_vectorized":  # the reference gives a group of one 0 here, and its reward in the loop form
            alone = inputs.groups.size == 1
            assert not want[alone].any()
            want[alone] = inputs.on_tokens(inputs.scores)[alone]
        if name == "gpg":  # the reference counts rows without a policy token as samples
            want *= mask.any(-1).double().mean()
        assert_close(got[mask], want[mask])
        assert not got[~mask].any()  # gae and remax leave numbers there in the reference


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"])
def test_whitening_one_token_is_refused(name):
    with pytest.raises(BurnishError, match="at least two policy tokens, and this batch has 1"):
        TABLE.load(name)(golden_inputs(REFUSED["gae/mask_sum_one_raises"]))


def test_passk_gives_a_group_of_one_nothing_where_the_reference_stops():
    inputs = golden_inputs(REFUSED["grpo_passk/singleton_raises"])
    alone = inputs.groups.size == 1
    advantages, _ = grpo_passk(inputs)
    assert alone.any() and inputs.scores[alone].any() and not advantages[alone].any()


def everything(seed, rows=8, width=9):
    """A batch that has whatever an estimator may need: holes, a group of one, and a row without a policy token."""
    random = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(rows, width, generator=random)

    mask = torch.rand(rows, width, generator=random) < 0.6
    mask[:, 0] = True
    mask[-1] = False
    uids = np.array(["a", "b", "a", "c", "b", "a", "d", "d"], dtype=object)[:rows]
    inputs = make_advantage_inputs(normal(), mask, uids, values=normal(), gamma=0.97, lam=0.9, gdpo_reward_keys=PARTS)
    return dataclasses.replace(
        inputs,
        reward_baselines=torch.randn(rows, generator=random),
        reward_components={name: torch.randn(rows, generator=random) for name in PARTS},
        outputs={"sum_pi_squared": torch.rand(rows, width, generator=random)},
        process_rewards=normal(),
        old_log_probs=-normal().exp(),
        rollout_is_weights=normal().exp(),
    )


def by_token(inputs, change):
    """The inputs with `change` applied to every tensor that has a number for each token, but the mask."""
    names = ("token_level_rewards", "values", "process_rewards", "old_log_probs", "rollout_is_weights")
    changed = {name: change(getattr(inputs, name)) for name in names}
    outputs = {name: change(tensor) for name, tensor in inputs.outputs.items()}
    return dataclasses.replace(inputs, **changed, outputs=outputs)


SEED = st.integers(0, 10**6)
JUNK = st.sampled_from([math.nan, math.inf, -math.inf, 1e30]) | st.floats(width=32)


@pytest.mark.parametrize("name", NAMES)
@given(seed=SEED, junk=JUNK)
@settings(max_examples=20, deadline=None)
def test_observation_tokens_change_nothing_and_results_are_finite(name, seed, junk):
    inputs, estimate = everything(seed), TABLE.load(name)
    mask = inputs.response_mask
    replaced = by_token(inputs, lambda tensor: tensor.masked_fill(~mask, junk))
    for before, after in zip(estimate(inputs), estimate(replaced), strict=True):
        assert torch.equal(before, after)
        assert before.shape == mask.shape and before.dtype == torch.float32
        assert before.isfinite().all() and before[mask].any() and not before[~mask].any()


def rows_of(inputs, rows):
    """Some of the rows, in that order."""
    rows = torch.as_tensor(rows)
    return dataclasses.replace(
        by_token(inputs, lambda tensor: tensor[rows]),
        response_mask=inputs.response_mask[rows],
        uids=inputs.uids[rows.numpy()],
        reward_baselines=inputs.reward_baselines[rows],
        reward_components={key: part[rows] for key, part in inputs.reward_components.items()},
    )


@pytest.mark.parametrize("name", NAMES)
@given(seed=SEED, order=st.permutations(range(8)))
@settings(max_examples=20, deadline=None)
def test_neither_the_order_of_rows_matters_nor_a_prompt_without_policy_tokens(name, seed, order):
    inputs, estimate = everything(seed), TABLE.load(name)
    for want, got in zip(estimate(inputs), estimate(rows_of(inputs, order)), strict=True):
        assert_close(got, want[order])
    inputs = dataclasses.replace(inputs, uids=np.array([*inputs.uids[:-1], "another"], dtype=object))  # without one
    for want, got in zip(estimate(rows_of(inputs, range(7))), estimate(inputs), strict=True):
        assert_close(got[:7], want)


@pytest.mark.parametrize("name", NAMES)
def test_observation_tokens_take_no_time(name):
    """Cutting the holes out of the responses gives the same numbers on the policy's tokens."""
    lengths = torch.tensor([5, 3, 5, 2, 4, 1])
    tight = everything(seed=2, rows=6, width=5)
    tight = dataclasses.replace(tight, response_mask=torch.arange(5) < lengths.unsqueeze(-1))
    apart = torch.tensor([0, 1, 4, 5, 7])  # where the five tokens stand once there are holes between them

    def widen(tensor):
        return torch.zeros(6, 9, dtype=tensor.dtype).index_copy(1, apart, tensor)

    holed = dataclasses.replace(by_token(tight, widen), response_mask=widen(tight.response_mask))
    for want, got in zip(TABLE.load(name)(tight), TABLE.load(name)(holed), strict=True):
        assert_close(got[:, apart], want)


REWARD = st.floats(-1e6, 1e6, width=32)


@pytest.mark.parametrize("name", OUTCOME)
@given(
    rewards=st.lists(st.tuples(REWARD, REWARD), min_size=1, max_size=4),
    parts=st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)),
    size=st.integers(2, 20),
    norm=st.booleans(),
    seed=SEED,
)
@example(rewards=[(0.3, 0.0)], parts=(0.1, 0.7), size=8, norm=True, seed=0)
@example(rewards=[(0.7, 1e-7), (0.3, 1e-8)], parts=(0.1, 0.7), size=7, norm=True, seed=1)
@settings(max_examples=40, deadline=None)
def test_equal_rewards_in_each_group_give_exactly_zero(name, rewards, parts, size, norm, seed):
    """Each group has its reward, in two parts that stand anywhere in its responses; all tokens one process reward."""
    random = torch.Generator().manual_seed(seed)
    groups, rows = len(rewards), size * len(rewards)
    where = torch.rand(rows, 6, generator=random).argsort(-1)[:, :2]
    earned = torch.tensor(rewards, dtype=torch.float32).repeat(size, 1)
    mask = (torch.rand(rows, 6, generator=random) < 0.6).scatter(1, where, True)
    inputs = make_advantage_inputs(
        torch.zeros(rows, 6).scatter(1, where, earned),
        mask,
        list(range(groups)) * size,
        norm_adv_by_std_in_grpo=norm,
        gdpo_reward_keys=PARTS if groups % 2 else None,
    )
    components = {key: torch.full((rows,), part, dtype=torch.float64) for key, part in zip(PARTS, parts, strict=True)}
    given_ = {"reward_components": components, "process_rewards": torch.full((rows, 6), parts[0])}
    advantages, _ = TABLE.load(name)(dataclasses.replace(inputs, **given_))
    assert not advantages.any()


@given(value=st.floats(-1e6, 1e6), size=st.integers(1, 50))
def test_statistics_of_groups(value, size):
    """In any order of rows; equal values have exactly their mean, and a group of one keeps its value when centred."""
    groups, values = Groups.of(np.array(["b", "a", "b", "a"], dtype=object)), torch.tensor([1.0, 10.0, 3.0, 30.0])
    assert groups.sum(values).tolist() == [4.0, 40.0, 4.0, 40.0]
    assert groups.mean(values).tolist() == [2.0, 20.0, 2.0, 20.0]
    assert groups.max(-values).tolist() == [-1.0, -10.0, -1.0, -10.0]
    assert groups.centred(values).tolist() == [-1.0, -10.0, 1.0, 10.0]
    assert groups.std(values).tolist() == pytest.approx([2**0.5, 200**0.5, 2**0.5, 200**0.5])
    alone, one = Groups.of(np.array([3])), torch.tensor([0.75])
    assert alone.mean(one).item() == alone.max(one).item() == alone.centred(one).item() == 0.75
    assert alone.std(one).item() == 0
    assert (Groups.of(np.zeros(size)).mean(torch.full((size,), value, dtype=torch.float64)) == value).all()


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "gpg"])
def test_equal_sums_of_token_rewards_give_exactly_zero_and_a_group_of_one_keeps_its_reward(name):
    tokens = [0.1, 0.7, -0.3, 0.2, 1e-4, 0.9]
    shuffled = [tokens[i:] + tokens[:i] for i in range(6)]  # float32 sums of these differ in the last digit
    assert not TABLE.load(name)(make_advantage_inputs(shuffled, torch.ones(6, 6), ["same"] * 6))[0].any()
    rewards, mask = [[0, 0.75], [1, 0], [1, 0]], torch.ones(3, 2)
    inputs = make_advantage_inputs(rewards, mask, [1, 2, 2], norm_adv_by_std_in_grpo=False)
    assert TABLE.load(name)(inputs)[0].tolist() == [[0.75, 0.75], [0, 0], [0, 0]]


SCORES = st.lists(st.integers(-2, 2), min_size=1, max_size=9)  # few values, so that there are ties


def one_per_row(scores):
    """A reward per row on its second token; rows of three tokens."""
    return torch.nn.functional.pad(torch.tensor(scores, dtype=torch.float32).unsqueeze(-1), (1, 1))


@given(scores=SCORES, norm=st.booleans())
@settings(max_examples=60, deadline=None)
def test_passk_is_what_a_sample_adds_to_the_best_of_the_others_and_rloo_compares_with_their_mean(scores, norm):
    rewards = one_per_row(scores)
    inputs = make_advantage_inputs(rewards, torch.ones_like(rewards), [0] * len(scores), norm_adv_by_std_in_grpo=norm)
    added = [max(scores) - max(scores[:i] + scores[i + 1 :], default=scores[i]) for i in range(len(scores))]
    spread = np.std(scores, ddof=1) + 1e-6 if norm and len(scores) > 1 else 1
    assert_close(grpo_passk(inputs)[0][:, 0], np.array(added) / spread)
    if len(scores) > 1:
        beaten_by = [score - (sum(scores) - score) / (len(scores) - 1) for score in scores]
        assert_close(rloo(inputs)[0][:, 2], beaten_by)


def test_opo_weighs_by_the_tokens_that_the_policy_sampled():
    mask = [[1, 0, 0, 0, 1], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]  # lengths 2, 5, 1: the mean is (2 + 0 + 1) / 8
    rewards = [[0, 0, 0, 0, 1.0], [0, 0, 0, 0, 0.0], [1.0, 0, 0, 0, 0]]
    advantages, _ = opo(make_advantage_inputs(rewards, mask, ["a"] * 3))
    assert advantages[:, 0].tolist() == [0.625, -0.375, 0.625]


def test_gpg_counts_samples_with_a_policy_token_and_those_with_a_reward_or_a_penalty():
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0], [0, 0]])
    rewards = [[0, 1.0], [0, 9.0], [0, 0], [0, 0], [5.0, 5.0]]  # 9 and 5 stand where the policy sampled nothing
    advantages, _ = gpg(make_advantage_inputs(rewards, mask, ["a", "a", "b", "b", "c"]))
    assert advantages[:, 0].tolist() == [2.0, -2.0, 0, 0, 0]  # α = 4 samples / 1 with a reward
    rewards = one_per_row([1.0, 0, 0, 0]) - torch.tensor([1e-3, 0, 0])  # a KL penalty on each sample, say
    penalised, _ = gpg(make_advantage_inputs(rewards, torch.ones_like(rewards), ["a", "a", "b", "b"]))
    assert penalised[:, 0].tolist() == [0.5, -0.5, 0, 0]  # α = 1


def gdpo_inputs(parts=None, **config):
    """Four samples of one prompt, with the parts of their rewards."""
    inputs = make_advantage_inputs(one_per_row([3, 0, 1, 2]), torch.ones(4, 3), ["a"] * 4, **config)
    parts = {"style": [0.0, 1.0, 1.0, 0.0], "truth": [1.0, 0.0, 0.0, 0.5]} if parts is None else parts
    return dataclasses.replace(inputs, reward_components={key: torch.tensor(part) for key, part in parts.items()})


def test_gdpo_does_not_let_a_wide_part_drown_another():
    keys = {"gdpo_reward_keys": ["style", "truth"]}
    narrow = {"style": [0.0, 1.0, 1.0, 0.0], "truth": [1.0, 0.0, 1.0, 0.0]}
    wide = {**narrow, "truth": [1000.0, 0.0, 1000.0, 0.0]}
    want, got = (gdpo(gdpo_inputs(parts, **keys))[0] for parts in (narrow, wide))
    assert_close(got, want)
    assert_close(got[0], got[1])  # one part is as good as the other,
    assert got[2, 0] > 1 > got[0, 0]  # and both are better
    got, _ = gdpo(gdpo_inputs())  # without keys it compares the score
    assert_close(got[:, 0], np.array([1.5, -1.5, -0.5, 0.5]) / np.repeat([1.5, -1.5, -0.5, 0.5], 3).std(ddof=1))
    pairs = [("style", 0.25), ("truth", 2.0)], [("truth", 2.0), ("style", 0.25)], [("style", 2.0), ("truth", 0.25)]
    want, same, swapped = (
        gdpo(gdpo_inputs(gdpo_reward_keys=[k for k, _ in pair], gdpo_reward_weights=[w for _, w in pair]))[0]
        for pair in pairs
    )
    assert_close(same, want)  # each weight goes to the key of the same place
    assert not torch.allclose(swapped, want, atol=0.1)


def test_gdpo_needs_each_part():
    inputs = gdpo_inputs(gdpo_reward_keys=["style", "length", "truth"])
    with pytest.raises(BurnishError, match=r"and length is missing: declare Needs\(reward_components=True\)"):
        gdpo(inputs)


def plain_gae(rewards, values, mask, gamma, lam):
    """The recursion as it is written in the paper, on the policy's tokens one by one."""
    raw = torch.zeros_like(values)
    for row in range(len(values)):
        next_value = next_advantage = 0.0
        for t in reversed(range(values.shape[1])):
            if not mask[row, t]:
                continue
            delta = rewards[row, t] + gamma * next_value - values[row, t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[row, t]
            raw[row, t] = next_advantage
    return raw


@given(seed=SEED, width=st.integers(1, 20), gamma=st.floats(0, 1), lam=st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_returns_equal_the_plain_recursion(seed, width, gamma, lam):
    random = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 4, width, generator=random)
    mask = torch.rand(4, width, generator=random) < 0.7
    mask[:2, 0] = True  # two policy tokens, so that there is a variance
    inputs = make_advantage_inputs(rewards, mask, values=values, gamma=gamma, lam=lam)
    wide, nothing = rewards.double(), torch.zeros(4, width, dtype=torch.float64)
    assert_close(gae(inputs)[1], (plain_gae(wide, values.double(), mask, gamma, lam) + values) * mask)
    # Without a critic, λ = 1 leaves the reward to go.
    assert_close(reinforce_plus_plus(inputs)[1], plain_gae(wide, nothing, mask, gamma, 1.0))
    inputs = dataclasses.replace(inputs, reward_baselines=values[:, 0])
    advantages, returns = remax(inputs)
    assert_close(returns, plain_gae(wide, nothing, mask, 1.0, 1.0))
    assert_close(advantages, (returns - values[:, :1]) * mask)


@given(reward=st.floats(-1e6, 1e6, width=32), seed=SEED)
@settings(max_examples=30, deadline=None)
def test_reinforce_plus_plus_gives_equal_final_rewards_exactly_zero(reward, seed):
    random = torch.Generator().manual_seed(seed)
    mask = torch.rand(7, 5, generator=random) < 0.6
    mask[:, -1] = True
    rewards = torch.zeros(7, 5)
    rewards[:, -1] = reward
    advantages, returns = reinforce_plus_plus(make_advantage_inputs(rewards, mask))
    assert not advantages.any()
    assert torch.equal(returns, reward * mask)


def test_remax_gives_a_sample_as_good_as_the_greedy_answer_exactly_zero():
    inputs = make_advantage_inputs([[0, 0, 0.3], [0, 1.0, 0]], [[1, 0, 1], [1, 1, 0]])
    advantages, _ = remax(dataclasses.replace(inputs, reward_baselines=torch.tensor([0.3, 0.25], dtype=torch.float64)))
    assert advantages.tolist() == [[0, 0, 0], [0.75, 0.75, 0]]


@pytest.mark.parametrize(
    ("estimate", "what", "need"),
    [(gae, "the critic's values", "critic"), (remax, "the scores of greedy answers", "greedy_baseline")],
)
def test_what_an_estimator_needs_and_does_not_find_is_named(estimate, what, need):
    with pytest.raises(BurnishError, match=rf"{estimate.__name__} needs {what}.*Needs\({need}=True\)"):
        estimate(make_advantage_inputs([[1.0, 0.0]], [[1, 1]]))
