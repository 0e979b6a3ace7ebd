"""Sampling through the whole engine: frequencies, seeds, what ends a completion, and what callbacks see."""

import asyncio
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from burnish.rollout.base import Request, Sampling
from tests.rollout.native.exact import EOS, check_exact, greedy, random_prompts, random_requests
from tests.rollout.native.models import CONTEXT, build

V = 12  # a small vocabulary, so that pairs of tokens are frequent enough to be counted
DRAWS = 3000
PROMPT = random_prompts(1, seed=5, shortest=9, longest=9)[0]
FREE = Sampling(max_tokens=20, ignore_eos=True)
KINDS = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 2.0},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.2},
    "top_k_top_p": {"top_k": 5, "top_p": 0.6},
    "all": {"temperature": 1.4, "top_k": 6, "top_p": 0.8, "min_p": 0.15},
}
SETTINGS = {
    "default": {},
    "ahead0": {"ahead": 0},
    "ahead1": {"ahead": 1},
    "ahead3": {"ahead": 3},
    "five at a time": {"max_num_seqs": 5},
    "one at a time": {"max_num_seqs": 1},
    "cut prompts": {"max_num_batched_tokens": 8, "max_num_seqs": 8},
    "whole prompts": {"max_num_batched_tokens": 24, "chunked_prefill": False, "max_num_seqs": 8},
    "small pool": {"blocks": 14},
    "small pool ahead3": {"blocks": 14, "ahead": 3, "prefix_caching": False},
    "no cache": {"prefix_caching": False},
    "module": {"fused": False},
    "large blocks": {"block_size": 16, "blocks": 90},
}
aheads = pytest.mark.parametrize("ahead", [0, 1, 3])


def exact(logits, *, temperature=1.0, top_k=-1, top_p=1.0, min_p=0.0):
    """The distribution over (V,), written down token by token."""
    p = torch.softmax(logits.double() / temperature, 0).numpy()
    kept = list(np.argsort(-p)[:top_k] if top_k > 0 else np.argsort(-p))
    if top_p < 1:
        mass, nucleus = 0.0, []
        for token in kept:
            if mass >= top_p * p[kept].sum():
                break
            nucleus.append(token)
            mass += p[token]
        kept = nucleus
    kept = [token for token in kept if p[token] >= min_p * p.max()]
    q = np.zeros(V)
    q[kept] = p[kept]
    return q / q.sum()


def chi_square_fits(counts, expected):
    """Whether counts follow from what is expected, but for a chance of about 1e-5. Rare cells are counted together."""
    counts, expected = np.asarray(counts, float).ravel(), np.asarray(expected, float).ravel()
    assert counts[expected == 0].sum() == 0, "a token of probability 0 was drawn"
    rare = expected < 8
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    if expected[-1] < 8:
        counts, expected = counts[:-1], expected[:-1]
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    # Wilson and Hilferty: the cube root of chi-square over its degrees of freedom is nearly normal.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.3 * (2 / (9 * freedom)) ** 0.5) ** 3
    return statistic < limit


@cache
def small_vocabulary():
    return build("qwen2", {"vocab_size": V}, seed=3)


@pytest.fixture(scope="module")
def small_prompt():
    return random_prompts(1, seed=5, shortest=9, longest=9, vocabulary=V)[0]


def test_frequencies_match_exact_probabilities(native, small_prompt):
    """All kinds at once, so that rows with and without truncation share their batches; first and second token."""
    module = small_vocabulary()
    requests = [
        (small_prompt, Sampling(max_tokens=2, ignore_eos=True, seed=100_000 * i + draw, **kind))
        for draw in range(DRAWS)
        for i, kind in enumerate(KINDS.values())
    ]
    completions = native(module, max_num_seqs=512, blocks=1100, max_num_batched_tokens=4096).run(requests)
    with torch.no_grad():
        first_logits = module(torch.tensor([small_prompt])).logits[0, -1]
        second_logits = module(torch.tensor([[*small_prompt, token] for token in range(V)])).logits[:, -1]
    for i, (name, kind) in enumerate(KINDS.items()):
        tokens = np.array([completion.token_ids for completion in completions[i :: len(KINDS)]])
        first = exact(first_logits, **kind)
        pairs = first[:, None] * np.array([exact(row, **kind) for row in second_logits])
        assert (1 < (first > 0).sum() < V) == ("top" in name or "_p" in name or name == "all")
        assert chi_square_fits(np.bincount(tokens[:, 0], minlength=V), first * DRAWS), name
        assert chi_square_fits(np.bincount(tokens[:, 0] * V + tokens[:, 1], minlength=V * V), pairs * DRAWS), name
    # The check itself can fail: tokens of one kind do not follow another's probabilities.
    plain = np.bincount([c.token_ids[0] for c in completions[:: len(KINDS)]], minlength=V)
    assert not chi_square_fits(plain, exact(first_logits, temperature=2.0) * DRAWS)


@pytest.fixture(scope="module")
def mixed():
    return random_requests(30, seed=7)


@pytest.fixture(scope="module")
def expected(module, mixed, one_by_one):
    return one_by_one(module, mixed)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_the_same_tokens_as_the_hf_engine_gives_one_by_one(native, module, mixed, expected, settings):
    engine = native(module, **settings)
    for _ in range(2):  # the second time the prompts are cached
        got = engine.run(mixed)
        assert [c.token_ids for c in got] == [c.token_ids for c in expected]
        assert [(c.finish_reason, c.stop) for c in got] == [(c.finish_reason, c.stop) for c in expected]
        for one, other in zip(got, expected, strict=True):
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    check_exact(module, mixed, got, context=CONTEXT)


def test_both_interfaces_give_the_same(native, module, mixed, generate_all):
    engine = native(module)
    assert [c.token_ids for c in generate_all(engine, mixed)] == [c.token_ids for c in engine.run(mixed)]


@aheads
def test_a_repeated_run_is_the_same_bit_for_bit(native, module, mixed, ahead):
    assert native(module, ahead=ahead).run(mixed) == native(module, ahead=ahead).run(mixed)


def test_seed_decides_the_tokens(native, module):
    engine = native(module)
    big = 2**64 - 1  # seeds have 64 bits and no sign
    seeds = (1, 1, 2, big, big - 2**63)
    completions = engine.run([(PROMPT, replace(FREE, seed=seed)) for seed in seeds])
    tokens = [tuple(completion.token_ids) for completion in completions]
    assert tokens[0] == tokens[1] and len(set(tokens)) == 4
    check_exact(module, [(PROMPT, replace(FREE, seed=seed)) for seed in seeds], completions, context=CONTEXT)


def test_an_empty_batch(native, module):
    assert native(module).run([]) == []


@aheads
def test_stop_id_ends_and_is_kept(native, module, ahead):
    engine = native(module, ahead=ahead)
    whole = engine.run([(PROMPT, FREE)])[0].token_ids
    requests = [(PROMPT, replace(FREE, stop_token_ids=(token,))) for token in whole]
    for completion, token in zip(engine.run(requests), whole, strict=True):
        assert completion.token_ids == whole[: whole.index(token) + 1]
        assert (completion.finish_reason, completion.stop) == ("stop", token)


@pytest.mark.parametrize("place", [0, 7, 8, 11])
def test_more_stop_ids_than_the_device_holds(native, module, place):
    engine = native(module, ahead=2)
    whole = engine.run([(PROMPT, FREE)])[0].token_ids
    others = [token for token in range(3, 259) if token not in whole][:11]
    stops = [*others[:place], whole[6], *others[place:]]
    cut, beside = engine.run([(PROMPT, replace(FREE, stop_token_ids=tuple(stops))), (PROMPT, FREE)])
    assert cut.token_ids == whole[: whole.index(whole[6]) + 1] and beside.token_ids == whole
    assert (cut.finish_reason, cut.stop) == ("stop", whole[6])


def ascii_completion(engine, tokenizer):
    """A request, its free completion, and the text of its tokens 4 to 6, which are plain characters."""
    for seed in range(40):
        sampling = replace(FREE, seed=seed, top_k=20)
        tokens = engine.run([(PROMPT, sampling)])[0].token_ids
        text = tokenizer.decode(tokens[4:7])
        if text.isascii() and len(text) == 3 and text not in tokenizer.decode(tokens[:6]):
            return sampling, tokens, text
    raise AssertionError("no completion with three plain characters")


@aheads
def test_stop_string_across_tokens_keeps_the_completing_token(native, module, tokenizer, ahead):
    engine = native(module, ahead=ahead)
    sampling, whole, text = ascii_completion(engine, tokenizer)
    seen = []
    requests = [(PROMPT, replace(sampling, stop=(text, "never there"))), (PROMPT, sampling)]
    cut, beside = engine.run(requests)
    assert (cut.finish_reason, cut.stop, cut.token_ids) == ("stop", text, whole[:7])
    assert len(cut.log_probs) == 7 and beside.token_ids == whole

    async def streamed():
        return await engine.generate(
            Request(PROMPT, requests[0][1], request_id="a"),
            on_token=lambda token, log_prob: seen.append((token, log_prob)),
        )

    completion = asyncio.run(streamed())
    assert completion.token_ids == whole[:7]
    assert seen == list(zip(completion.token_ids, completion.log_probs, strict=True))


def test_what_is_cut_after_a_stop_string_leaves_nothing_behind(native, module, tokenizer):
    engine = native(module, ahead=3)
    sampling, whole, text = ascii_completion(engine, tokenizer)
    before = engine.stats()["generated_tokens"]
    engine.run([(PROMPT, replace(sampling, stop=(text,)))])
    assert 7 <= engine.stats()["generated_tokens"] - before <= 7 + 3  # some were under way when it was found
    follow_up = [*PROMPT, *whole[:7], 5, 6]  # the next turn goes on from what was kept, not from what was cut
    check_exact(module, [(follow_up, FREE)], engine.run([(follow_up, FREE)]), context=CONTEXT)


def test_stop_id_comes_before_stop_string_and_string_before_length(native, module, tokenizer):
    engine = native(module)
    sampling, whole, text = ascii_completion(engine, tokenizer)
    both, at_the_limit = engine.run(
        [
            (PROMPT, replace(sampling, stop=(text,), stop_token_ids=(whole[6],))),
            (PROMPT, replace(sampling, stop=(text,), max_tokens=7)),
        ]
    )
    assert both.stop == whole[6] and at_the_limit.stop == text


@aheads
def test_end_of_sequence_stops_unless_ignored(native, module, ahead):
    engine = native(module, ahead=ahead)
    sampling = Sampling(max_tokens=40, temperature=4.0)
    tries = engine.run([(PROMPT, replace(sampling, seed=seed)) for seed in range(60)])
    seed = next(seed for seed, c in enumerate(tries) if EOS in c.token_ids and len(c.token_ids) > 1)
    stopped, ignored = engine.run([(PROMPT, replace(sampling, seed=seed, ignore_eos=on)) for on in (False, True)])
    assert (stopped.finish_reason, stopped.stop, stopped.token_ids[-1]) == ("stop", EOS, EOS)
    assert (ignored.finish_reason, len(ignored.token_ids)) == ("length", 40)
    assert ignored.token_ids[: len(stopped.token_ids)] == stopped.token_ids
    # Asked for as a stop id, it ends the completion although it is otherwise ignored.
    asked = engine.run([(PROMPT, replace(sampling, seed=seed, ignore_eos=True, stop_token_ids=(EOS,)))])[0]
    assert asked.token_ids == stopped.token_ids


def test_generation_config_lists_further_end_tokens(native, module, monkeypatch):
    token = native(module).run([(PROMPT, Sampling(max_tokens=9))])[0].token_ids[0]
    monkeypatch.setattr(module.generation_config, "eos_token_id", [token, EOS])
    completion = native(module).run([(PROMPT, Sampling(max_tokens=9))])[0]
    assert (completion.token_ids, completion.stop) == ([token], token)


@aheads
def test_max_tokens_and_the_context_limit_end_with_length(native, module, ahead):
    prompt = list(range(3, 13))
    counts = [1, 2, 3, 15]
    completions = native(module, ahead=ahead).run([(prompt, replace(FREE, max_tokens=count)) for count in counts])
    assert [len(c.token_ids) for c in completions] == counts
    free = replace(FREE, max_tokens=None)
    short, long = native(module, ahead=ahead, max_model_len=16), native(module, ahead=ahead)
    completions += short.run([(prompt, free), (prompt[:2], free), (prompt + [5] * 5, free)])
    assert [len(c.token_ids) for c in completions[-3:]] == [6, 14, 1]
    completions += long.run([(prompt, free), (prompt[:2], free), (prompt, replace(FREE, max_tokens=1000))])
    assert [len(c.token_ids) for c in completions[-3:]] == [CONTEXT - 10, CONTEXT - 2, CONTEXT - 10]
    assert {(c.finish_reason, c.stop) for c in completions} == {("length", None)}


def test_a_learned_position_table_is_used_to_its_end(native):
    module = build("gpt2", {}, context=32)
    engine = native(module)
    free = Sampling(ignore_eos=True)
    requests = [(list(range(3, 33)), free), *[([5, 6], replace(free, seed=seed)) for seed in (1, 2)]]
    completions = engine.run(requests)
    assert [len(c.token_ids) for c in completions] == [2, 30, 30]
    check_exact(module, requests, completions, context=32)


@aheads
def test_every_token_reaches_its_callback_in_order_and_none_after_the_end(native, module, ahead):
    engine = native(module, ahead=ahead, max_num_seqs=4)
    requests = random_requests(12, seed=9)
    seen, finished = {i: [] for i in range(len(requests))}, set()

    async def one(i, prompt, sampling):
        def on_token(token, log_prob):
            assert i not in finished
            seen[i].append((token, log_prob))

        completion = await engine.generate(Request(prompt, sampling, request_id=str(i), order=(i,)), on_token=on_token)
        finished.add(i)
        return completion

    async def main():
        return await asyncio.gather(*[one(i, *request) for i, request in enumerate(requests)])

    completions = asyncio.run(main())
    for i, completion in enumerate(completions):
        assert seen[i] == list(zip(completion.token_ids, completion.log_probs, strict=True))


def test_greedy_log_probs_are_not_scaled(native, module):
    completion = native(module).run([(PROMPT, Sampling(temperature=0, max_tokens=8))])[0]
    assert completion.token_ids == greedy(module, PROMPT, 8)
    check_exact(module, [(PROMPT, Sampling(temperature=0, max_tokens=8))], [completion], context=CONTEXT)


def test_extreme_temperatures(native, module):
    requests = [
        (PROMPT, replace(FREE, temperature=temperature, seed=seed))
        for temperature in (0.001, 0.01, 50.0)
        for seed in range(3)
    ]
    completions = native(module).run(requests)
    assert [c.token_ids for c in completions[:3]] == [greedy(module, PROMPT, 20, eos_token_id=None)] * 3
    # Log-probs are of logits times 1,000 there, and so is what rounding does to them.
    check_exact(module, requests[6:], completions[6:], context=CONTEXT)
