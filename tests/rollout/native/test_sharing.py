"""A prompt is read once for a group, a continuation re-uses its prefix, and new weights make both start again."""

from dataclasses import replace

import pytest

from burnish.rollout.base import Sampling
from tests.rollout.native.exact import check_exact, random_prompts
from tests.rollout.native.models import CONTEXT

S = 8  # tokens per block
FREE = Sampling(ignore_eos=True, max_tokens=13)
READ = ("prompt_tokens", "prefill_tokens", "shared_tokens", "prefix_hit_tokens")


def prompt_of(length, seed=0):
    return random_prompts(1, seed, length, length)[0]


def reading(engine, requests):
    """The completions, and what reading their prompts added to the statistics: asked, computed, shared, found."""
    before = engine.stats()
    completions = engine.run(requests)
    after = engine.stats()
    asked, computed, shared, found = (after[name] - before[name] for name in READ)
    assert asked == computed + shared + found == sum(len(prompt) for prompt, _ in requests)
    return completions, (computed, shared, found)


@pytest.mark.parametrize("length", [1, S - 1, S, S + 1, 3 * S, 3 * S + 5])
@pytest.mark.parametrize("settings", [{}, {"prefix_caching": False}, {"ahead": 2}], ids=["cached", "uncached", "ahead"])
def test_a_group_reads_its_prompt_once(native, module, length, settings):
    requests = [(prompt_of(length), replace(FREE, seed=seed)) for seed in range(6)]
    completions, read = reading(native(module, block_size=S, **settings), requests)
    assert read == (length, 5 * length, 0)
    assert len({tuple(c.token_ids) for c in completions}) == 6
    check_exact(module, requests, completions, context=CONTEXT)


def test_several_groups_and_one_larger_than_the_batch_or_whose_prompt_is_cut(native, module):
    prompts = [prompt_of(length, seed=length) for length in (5, 16, 23)]
    requests = [(prompt, replace(FREE, seed=seed)) for seed in range(4) for prompt in prompts]
    completions, read = reading(native(module, block_size=S), requests)
    assert read == (5 + 16 + 23, 3 * (5 + 16 + 23), 0)
    large = [(prompt_of(20), replace(FREE, seed=seed)) for seed in range(6)]
    more, (computed, _, found) = reading(native(module, block_size=S, max_num_seqs=2), large)
    assert found > 0 and computed < 6 * 20 / 2, "it finds its prompt again"
    cut = [(prompt_of(30), replace(FREE, seed=seed)) for seed in range(4)]
    last, (computed, shared, found) = reading(native(module, block_size=S, max_num_batched_tokens=8), cut)
    assert computed < 2 * 30 and shared + found == 4 * 30 - computed
    check_exact(module, requests + large + cut, completions + more + last, context=CONTEXT)


@pytest.mark.parametrize("length", [S, S + 1, 2 * S, 2 * S + 1, 18, 19, 20, 21])
def test_a_last_token_is_computed_again(native, module, length):
    """That of a prompt for its logits; that of a completion was never fed, so a block that it would fill is not
    whole."""
    engine = native(module, block_size=S)
    request = (prompt_of(length), FREE)
    (first,), _ = reading(engine, [request])
    (again,), (computed, _, found) = reading(engine, [request])
    assert found == (length - 1) // S * S and computed == length - found > 0
    assert again.token_ids == first.token_ids
    second = ([*prompt_of(length), *first.token_ids, 9, 10], FREE)
    (after,), (_, _, found) = reading(engine, [second])
    assert found == (length + len(first.token_ids) - 1) // S * S
    check_exact(module, [request, second], [again, after], context=CONTEXT)


def test_a_prefix_that_differs_in_one_token_or_lies_elsewhere_is_another(native, module):
    engine, block = native(module, block_size=S), prompt_of(S)
    prompt = [*block, *block, *block, 5, 6]
    engine.run([(prompt, FREE)])
    others = [(0, [*prompt_of(S, seed=1), *block, *block, 5])]  # equal blocks, after another one
    for place, blocks in ((0, 0), (S - 1, 0), (S, 1), (2 * S, 2), (3 * S, 3)):
        others.append((blocks, [*prompt[:place], (prompt[place] + 1) % 256 + 3, *prompt[place + 1 :]]))
    for blocks, other in others:
        completions, (_, _, found) = reading(engine, [(other, FREE)])
        assert found == blocks * S
        check_exact(module, [(other, FREE)], completions, context=CONTEXT)


def test_without_caching_nothing_is_shared_later(native, module):
    engine, request = native(module, block_size=S, prefix_caching=False), (prompt_of(S), FREE)
    assert reading(engine, [request])[1] == reading(engine, [request])[1] == (S, 0, 0)
    assert engine.stats()["kv_blocks_cached"] == 0


def test_what_is_cached_makes_room_when_it_is_needed(native, module):
    engine = native(module, block_size=S, blocks=12)
    requests = [(prompt_of(40, seed=seed), FREE) for seed in range(8)]
    completions = [engine.run([request])[0] for request in requests]
    check_exact(module, requests, completions, context=CONTEXT)
    stats = engine.stats()
    assert 0 < stats["kv_blocks_cached"] <= stats["kv_blocks"] <= 12 and stats["preemptions"] == 0
    assert reading(engine, requests[-1:])[1][2] == 32 and reading(engine, requests[:1])[1][2] == 0
