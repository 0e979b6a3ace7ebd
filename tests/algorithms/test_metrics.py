"""Step metrics, variance proxies and tallies: recorded results, configured maxima, and what is not counted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.algorithms import tally
from burnish.algorithms.metrics import data_metrics, lengths, reduce_metrics, throughput_metrics, timing_metrics
from burnish.algorithms.variance import logit_gradient_power, variance_proxy_metrics
from tests.algorithms.helpers import assert_close
from tests.recorded import each, golden


@each(golden("data_metrics", function="compute_data_metrics"))
def test_data_golden(case):
    batch = {name: torch.tensor(values) for name, values in case["inputs"]["batch"].items()}
    if not case["params"]["use_critic"]:
        batch.pop("values", None)
    extra = case["inputs"].get("non_tensor_batch", {})
    got = data_metrics(
        batch,
        max_prompt_length=batch["prompts"].shape[1],  # the recorded batches are as wide as they can be
        max_response_length=batch["responses"].shape[1],
        num_turns=extra.get("__num_turns__"),
        tool_call_counts=extra.get("tool_call_counts"),
    )
    recorded = case["expected"]["metrics"]
    want = {f"training/{name}" if "num_turns/" in name else name: value for name, value in recorded.items()}
    assert got["reward/mean"] == got["critic/score/mean"] == got["accuracy"]  # the recorded scores are 0 or 1
    assert_close({name: value for name, value in got.items() if name not in ("reward/mean", "accuracy")}, want)


LIMITS = {"max_prompt_length": 2, "max_response_length": 3}


def small_batch(**columns):
    ones = torch.ones(2, 3)
    names = ("token_level_scores", "token_level_rewards", "advantages", "returns", "response_mask")
    batch = {**dict.fromkeys(names, ones), "attention_mask": torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]])}
    return {**batch, **columns}


def test_clip_ratios_compare_with_the_configured_maximum_and_aborted_responses_report_only_what_they_have():
    batch = small_batch()
    assert [length.tolist() for length in lengths(batch)] == [[1, 2], [3, 1]]
    at_width = data_metrics(batch, **LIMITS)
    with_room = data_metrics(batch, max_prompt_length=100, max_response_length=100)
    assert (at_width["prompt_length/clip_ratio"], at_width["response_length/clip_ratio"]) == (0.5, 0.5)
    assert (with_room["prompt_length/clip_ratio"], with_room["response_length/clip_ratio"]) == (0.0, 0.0)
    nothing, attention = torch.zeros(2, 3), torch.tensor([[1, 1, 0, 0, 0], [0, 1, 0, 0, 0]])  # all aborted
    batch = small_batch(response_mask=nothing, token_level_scores=nothing, attention_mask=attention, values=nothing)
    got = data_metrics(batch, **LIMITS)
    assert got["response/aborted_ratio"] == 1.0 and got["response_length/max"] == 0.0
    assert not [name for name in got if name.startswith(("critic/", "reward/", "accuracy"))]


@pytest.mark.parametrize(("given", "expected"), [([True, False], 0.5), ([float("nan"), 1], 1), (None, None)])
def test_accuracy_is_the_reward_functions_own_where_it_gives_one(given, expected):
    """Of the samples that have one; it is not invented from scores other than 0 and 1, here 3."""
    got = data_metrics(small_batch(), accuracy=given, **LIMITS)
    assert got.get("accuracy") == expected and got["reward/mean"] == 3.0
    for batch in (small_batch(), small_batch(values=torch.zeros(2, 3))):
        assert data_metrics(TensorDict(batch, batch_size=2), **LIMITS) == data_metrics(batch, **LIMITS)
    attention = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])  # the second was aborted, and has no score either
    mask = attention[:, 2:]
    batch = small_batch(attention_mask=attention, response_mask=mask, token_level_scores=mask / 3)
    assert data_metrics(batch, **LIMITS)["accuracy"] == 1
    got = data_metrics(batch, accuracy=[True, False], **LIMITS)
    assert (got["accuracy"], got["reward/mean"]) == (1, 1)


def test_observation_tokens_change_nothing(junk):
    random = torch.Generator().manual_seed(0)
    mask = torch.tensor([[1, 0, 1, 0, 1], [1, 1, 0, 1, 0]])
    columns = ("token_level_scores", "token_level_rewards", "advantages", "returns", "values")
    batch = {name: torch.randn(2, 5, generator=random) for name in columns}
    batch |= {"response_mask": mask, "attention_mask": torch.ones(2, 8)}
    dirty = {name: t.masked_fill(mask == 0, junk) if name in columns else t for name, t in batch.items()}
    limits = {"max_prompt_length": 8, "max_response_length": 8}
    assert data_metrics(dirty, **limits) == data_metrics(batch, **limits)


@each(golden("data_metrics", function="compute_timing_metrics"))
def test_timing_golden(case):
    attention = torch.tensor(case["inputs"]["batch"]["attention_mask"])
    width = len(case["inputs"]["batch"]["responses"][0])
    got = timing_metrics(
        case["inputs"]["timing_raw"],
        total_tokens=int(attention.sum()),
        response_tokens=int(attention[:, -width:].sum()),
    )
    assert_close(got, case["expected"]["metrics"])
    assert timing_metrics({"gen": 1.0}, total_tokens=5, response_tokens=0) == {"timing_s/gen": 1.0}
    stages = dict.fromkeys(("old_log_prob", "process_reward", "update_actor"), 1.0)
    got = timing_metrics({**stages, "reward": 1.0}, total_tokens=10, response_tokens=5)
    assert {name for name in got if "per_token" in name} == {f"timing_per_token_ms/{stage}" for stage in stages}


@each(golden("data_metrics", function="compute_throughput_metrics"))
def test_throughput_golden(case):
    got = throughput_metrics(
        total_tokens=sum(case["inputs"]["meta_info"]["global_token_num"]),
        step_seconds=case["inputs"]["timing_raw"]["step"],
        n_devices=case["params"]["n_gpus"],
    )
    assert_close(got, case["expected"]["metrics"])


@each(golden("data_metrics", function="reduce_metrics"))
def test_reduce_golden(case):
    metrics, want = case["inputs"]["metrics"], dict(case["expected"]["metrics"])
    for misread in ("maximum_entropy", "administrative"):  # the reference finds "max" and "min" inside these words
        want[misread] = sum(metrics[misread]) / len(metrics[misread])
    assert_close(reduce_metrics(metrics), want)
    values = [1.0, 4.0]  # by the last word
    names = ("training/rollout_probs_diff_max", "num_turns/min", "max/loss", "min_p", "minmax_diff")
    assert list(reduce_metrics(dict.fromkeys(names, values)).values()) == [4.0, 1.0, 2.5, 2.5, 2.5]
    assert reduce_metrics({"actor/lr": 0.5}) == {"actor/lr": 0.5}
    endings = ("seq_max_deviation", "max", "min", "mean", "seq_fraction_high")
    reduced = reduce_metrics({f"rollout_corr/rollout_rs_seq_max_k3_{ending}": values for ending in endings})
    assert list(reduced.values()) == [4.0, 4.0, 1.0, 2.5, 2.5], "a mask called max is no maximum"


CASES = golden("data_metrics", function="compute_variance_proxy_metrics")
assert len(CASES) == 9
POWER, NOISE = "variance_proxy/proxy2_total_power", "variance_proxy/proxy3_pure_noise"


def batch_of(case):
    return {name: torch.tensor(values) for name, values in case["inputs"]["batch"].items()}


def random_batch(seed=0, rows=4, width=6, vocabulary=5):
    random = torch.Generator().manual_seed(seed)
    policy = torch.softmax(2 * torch.randn(rows, width, vocabulary, generator=random), -1)
    mask = torch.rand(rows, width, generator=random) < 0.6
    mask[:, 0] = True
    return {
        "old_log_probs": policy[..., 0].log(),
        "sum_pi_squared": (policy**2).sum(-1),
        "advantages": torch.randn(rows, width, generator=random),
        "rollout_is_weights": torch.rand(rows, width, generator=random) + 0.5,
        "response_mask": mask.long(),
    }


@each(CASES)
def test_variance_golden(case):
    norm = case["params"]["gradient_norm"]
    assert_close(variance_proxy_metrics(batch_of(case), norm), case["expected"]["metrics"])
    columns = TensorDict(batch_of(case), batch_size=len(case["inputs"]["batch"]["advantages"]))
    assert_close(variance_proxy_metrics(columns, norm), case["expected"]["metrics"])


def test_power_is_the_squared_norm_of_the_gradient_at_the_logits():
    logits = torch.randn(3, 4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    log_probs = logits.log_softmax(-1)
    chosen = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 0], [3, 3, 3, 3]])
    log_prob = log_probs.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    (gradient,) = torch.autograd.grad(log_prob.sum(), logits)
    sum_pi_squared = log_probs.exp().square().sum(-1)
    power = logit_gradient_power(log_prob, sum_pi_squared, torch.ones(3, 4))
    assert_close(power.detach(), gradient.square().sum(-1))
    certain = logit_gradient_power(torch.zeros(1, 2), torch.tensor([[1 - 1e-7, 1.0]]), torch.ones(1, 2))
    assert certain.tolist() == [[0, 0]], "not below 0"


@pytest.mark.parametrize("weighted", [False, True])
def test_what_stands_outside_the_mask_is_not_read(weighted, junk):
    batch = random_batch()
    if not weighted:
        del batch["rollout_is_weights"]
    outside = batch["response_mask"] == 0
    replaced = {name: values.masked_fill(outside, junk) for name, values in batch.items() if name != "response_mask"}
    got = variance_proxy_metrics({**replaced, "response_mask": batch["response_mask"]}, 0.1)
    assert got == variance_proxy_metrics(batch, 0.1)
    assert got[POWER] > 0


def test_samples_without_a_policy_token_are_not_counted_and_noise_needs_two():
    batch = random_batch()
    longer = {name: torch.cat([values, values[:2]]) for name, values in batch.items()}
    longer["response_mask"][4:] = 0
    assert variance_proxy_metrics(longer, 0.1) == variance_proxy_metrics(batch, 0.1)
    assert variance_proxy_metrics({**batch, "response_mask": torch.zeros(4, 6)}, 0.1) == {}
    metrics = variance_proxy_metrics({name: values[:1] for name, values in batch.items()}, 0.01)
    assert metrics[POWER] > 0.01**2 and metrics[NOISE] == 0
    metrics = variance_proxy_metrics(batch, 100.0)
    assert metrics["variance_proxy/proxy1_signal_strength"] == 100.0**2 and metrics[NOISE] == 0, "never negative"


VALUES = st.lists(st.tuples(st.floats(-1e3, 1e3), st.booleans(), st.integers(0, 2)), min_size=1, max_size=12)


def tallies(values, mask):
    return {
        "mean": tally.mean_over_tokens(values, mask),
        "max": tally.largest(values, mask),
        "min": tally.smallest(values, mask),
        "std": tally.spread(values, mask),
        "population": tally.spread(values, mask, sample=False),
        "share": tally.effective_share(values.abs(), mask),
    }


@given(rows=VALUES)
@settings(max_examples=60, deadline=None)
def test_any_cut_adds_up_to_the_statistics_of_the_whole(rows):
    values = torch.tensor([value for value, _, _ in rows], dtype=torch.float64)
    mask, part = torch.tensor([inside for _, inside, _ in rows]), torch.tensor([part for _, _, part in rows])
    whole = tally.merge([tallies(values, mask)])
    cut = tally.merge([tallies(values[part == n], mask[part == n]) for n in range(3)])  # some have no rows
    assert cut == pytest.approx(whole, rel=1e-9, abs=1e-9)
    inside = values[mask].numpy()
    if not inside.size:
        assert set(whole.values()) == {0.0}
        return
    weights = np.abs(inside)
    assert whole == pytest.approx(
        {
            "mean": inside.mean(),
            "max": inside.max(),
            "min": inside.min(),
            "std": inside.std(ddof=1) if inside.size > 1 else 0,
            "population": inside.std(),
            "share": weights.sum() ** 2 / (inside.size * (weights**2).sum()) if (weights**2).any() else 0,
        },
        rel=1e-9,
        abs=1e-9,
    )


def test_what_stands_outside_the_mask_is_not_read_and_inside_nothing_is_lost():
    values, mask = torch.tensor([2.0, torch.nan, 4.0, torch.inf]), torch.tensor([1, 0, 1, 0])
    read = tally.merge([tallies(values, mask)])
    assert (read["mean"], read["max"], read["min"], read["population"]) == (3, 4, 2, 1)
    assert read["share"] == pytest.approx(36 / 40)
    values, mask = torch.tensor([torch.inf, -torch.inf]), torch.ones(2)  # inside it is reported
    read = tally.merge([{"max": tally.largest(values, mask), "min": tally.smallest(values, mask)}])
    assert read == {"max": torch.inf, "min": -torch.inf}
    broken = tally.merge([{"max": tally.largest(values * 0, mask), "min": tally.smallest(values * 0, mask)}])
    assert all(np.isnan(value) for value in broken.values())
    values, mask = 1e8 + torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64), torch.ones(4)
    joined = tally.merge([{"std": tally.spread(values[:1], mask[:1])}, {"std": tally.spread(values[1:], mask[1:])}])
    assert joined["std"] == pytest.approx((5 / 3) ** 0.5, rel=1e-12), "nothing is lost to a large mean"


class Reads(TorchDispatchMode):
    """Counts the tensors that are read one by one, each of which waits for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_all_numbers_are_read_at_once_and_as_they_are():
    values = torch.tensor([1.0, 2.0, 4.0])
    parts = [tallies(values, torch.ones(3)), tallies(values, torch.tensor([1, 0, 1]))]
    with Reads() as reads:
        merged = tally.merge(parts)
    assert reads.count == 0 and merged["max"] == 4
    with Reads() as reads:
        float(values[0])
    assert reads.count == 1
    large = 2**24 + 1  # float32 would lose the 1
    mean = tally.part_of_mean(torch.tensor(1.0), torch.tensor(large))
    got = tally.merge([{"mean": mean, "sum": tally.part_of_sum(torch.tensor([0.1]))}])
    assert got == {"mean": 1 / large, "sum": float(torch.tensor(0.1))}
    assert tally.merge([{"mean": tally.part_of_mean(3.0, 2.0)}]) == {"mean": 1.5} and tally.merge([]) == {}
    one, two = (tally.part_of_mean(torch.tensor(total), torch.tensor(n)) for total, n in ((3.0, 4), (0.0, 2)))
    assert tally.merge([{"share": one}, {"share": two}]) == {"share": 0.5}, "means are weighted"
    assert tally.merge([{"share": tally.part_of_mean(torch.tensor(0.0), torch.tensor(0))}]) == {"share": 0.0}
    assert tally.merge([{"loss": tally.part_of_sum(torch.tensor(part))} for part in (0.25, 0.5)]) == {"loss": 0.75}
