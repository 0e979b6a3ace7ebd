"""The hf engine: exact tokens and log-probs, whatever else is in the batch; stops, limits, aborts and errors."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.config.rollout import RolloutConfig
from burnish.errors import ConfigError, NotAvailable, RolloutError
from burnish.models.tiny import write_tiny_model
from burnish.rollout import make_engine
from burnish.rollout.base import Request, Sampling, uniforms
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.sampler import sample
from burnish.waits import longest


def random_prompts(count, seed=0, vocabulary=90, longest=20):
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocabulary, rng.integers(1, longest)).tolist() for _ in range(count)]


def random_requests(count, seed=0):
    """Mixed prompts, lengths and sampling parameters; equal prompts and greedy rows among them."""
    rng = np.random.default_rng(seed)
    prompts = random_prompts(count, seed)
    for i in range(0, count, 3):
        prompts[i] = prompts[0]
    kinds = [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.0}]
    return [
        (prompt, Sampling(max_tokens=int(rng.integers(1, 30)), seed=i, **kinds[i % len(kinds)]))
        for i, prompt in enumerate(prompts)
    ]


def full_forward_log_probs(module, prompt, completion, temperature):
    with torch.no_grad():
        logits = module(torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1]
    log_probs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    return log_probs.gather(1, torch.tensor(completion.token_ids)[:, None]).squeeze(1)


@pytest.mark.parametrize("max_num_seqs,max_num_batched_tokens", [(1024, None), (5, None), (1024, 40)])
def test_batched_equals_one_by_one(module, tokenizer, generate_all, max_num_seqs, max_num_batched_tokens):
    requests = random_requests(24)
    alone = HFEngine(module, tokenizer, max_num_seqs=1)
    together = HFEngine(module, tokenizer, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    expected, got = generate_all(alone, requests), generate_all(together, requests)
    assert [c.token_ids for c in got] == [c.token_ids for c in expected]
    assert [(c.finish_reason, c.stop) for c in got] == [(c.finish_reason, c.stop) for c in expected]
    assert alone.stats()["batches"] == 24
    assert together.stats()["batches"] == -(-24 // min(24, max_num_seqs))


def test_the_same_run_twice_is_the_same_bit_for_bit(engine, generate_all):
    requests = random_requests(12, seed=3)
    assert generate_all(engine, requests) == generate_all(engine, requests)


def test_log_probs_equal_a_plain_forward(module, engine, generate_all):
    requests = random_requests(18, seed=1)
    for (prompt, sampling), completion in zip(requests, generate_all(engine, requests), strict=True):
        expected = full_forward_log_probs(module, prompt, completion, sampling.temperature)
        torch.testing.assert_close(torch.tensor(completion.log_probs), expected, atol=1e-5, rtol=0)


def test_each_token_follows_from_the_seed_and_its_position(module, engine, generate_all):
    requests = random_requests(6, seed=2)
    for (prompt, sampling), completion in zip(requests, generate_all(engine, requests), strict=True):
        with torch.no_grad():
            logits = module(torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1]
        positions = range(len(completion.token_ids))
        noise = torch.from_numpy(uniforms([sampling.seed] * len(positions), positions))
        assert sample(logits, [sampling] * len(positions), noise)[0].tolist() == completion.token_ids


def test_rows_that_are_done_leave_the_batch(module, tokenizer, generate_all, monkeypatch):
    sizes, forward = [], module.forward
    monkeypatch.setattr(module, "forward", lambda **inputs: sizes.append(len(inputs["input_ids"])) or forward(**inputs))
    engine = HFEngine(module, tokenizer)
    requests = [([5, 6], Sampling(max_tokens=n, ignore_eos=True, seed=n)) for n in range(1, 9)]
    completions = generate_all(engine, requests)
    assert [len(c.token_ids) for c in completions] == list(range(1, 9))
    assert sizes == [1, 8, 8, 8, 4, 4, 2, 1]  # one prefill for the shared prompt, then half, and half again


def test_rows_at_the_end_of_a_learned_position_table(tmp_path, generate_all):
    folder = write_tiny_model(tmp_path, model_type="gpt2", context=32)
    engine = HFEngine(AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))
    requests = [
        (list(range(3, 33)), Sampling(ignore_eos=True)),
        *[([5, 6], Sampling(ignore_eos=True, seed=s)) for s in (1, 2)],
    ]
    assert [len(c.token_ids) for c in generate_all(engine, requests)] == [2, 30, 30]


@pytest.mark.parametrize(
    "model_type,overrides",
    [
        ("qwen2", {}),
        ("qwen3", {"head_dim": 16}),
        ("llama", {}),
        ("mistral", {"sliding_window": 8}),
        ("gemma2", {"head_dim": 16, "sliding_window": 8}),
        ("gpt2", {"n_positions": 64}),
    ],
)
def test_greedy_equals_transformers_generate(tmp_path, generate_all, sharpen, model_type, overrides):
    folder = write_tiny_model(tmp_path, model_type=model_type, context=64, tie_word_embeddings=False, **overrides)
    module = sharpen(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    requests = [(prompt, Sampling(temperature=0, max_tokens=24)) for prompt in random_prompts(6)]
    for (prompt, _), completion in zip(requests, generate_all(HFEngine(module, tokenizer), requests), strict=True):
        ids = torch.tensor([prompt])
        expected = module.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        assert completion.token_ids == expected[0, len(prompt) :].tolist()
        assert len(set(completion.token_ids)) > 3 or len(completion.token_ids) < 24  # not one token over and over


def test_seed_decides_the_tokens(engine, generate_all):
    prompt, *_ = random_prompts(1)
    base = Sampling(max_tokens=16, ignore_eos=True)
    first, again, other = generate_all(engine, [(prompt, replace(base, seed=s)) for s in (1, 1, 2)])
    assert first.token_ids == again.token_ids != other.token_ids


def test_stop_id_ends_and_is_kept(engine, generate_all):
    prompt = random_prompts(1)[0]
    free = Sampling(max_tokens=20, ignore_eos=True)
    whole = generate_all(engine, [(prompt, free)])[0].token_ids
    stop_id = whole[7]
    cut = generate_all(engine, [(prompt, replace(free, stop_token_ids=(stop_id,)))])[0]
    assert cut.token_ids == whole[: whole.index(stop_id) + 1]
    assert (cut.finish_reason, cut.stop) == ("stop", stop_id)


def test_stop_string_across_tokens_keeps_the_completing_token(engine, tokenizer, generate_all):
    prompt = random_prompts(1)[0]
    free = Sampling(max_tokens=20, ignore_eos=True)
    tries = [replace(free, seed=seed, top_k=20) for seed in range(30)]
    whole = generate_all(engine, [(prompt, sampling) for sampling in tries])
    texts = [tokenizer.decode(completion.token_ids[4:7]) for completion in whole]
    sampling, completion, text = next(t for t in zip(tries, whole, texts, strict=True) if t[2].isascii())
    assert len(text) == 3
    cut = generate_all(engine, [(prompt, replace(sampling, stop=(text, "never there")))])[0]
    assert (cut.finish_reason, cut.stop) == ("stop", text)
    assert cut.token_ids == completion.token_ids[:7]
    assert len(cut.log_probs) == 7


def test_end_of_sequence_stops_unless_ignored(module, engine, tokenizer, generate_all):
    prompt = random_prompts(1)[0]
    eos = tokenizer.eos_token_id
    sampling = Sampling(max_tokens=40, temperature=4.0)
    tries = generate_all(engine, [(prompt, replace(sampling, seed=seed)) for seed in range(60)])
    seed = next(seed for seed, completion in enumerate(tries) if eos in completion.token_ids)
    stopped, ignored = generate_all(
        engine, [(prompt, replace(sampling, seed=seed, ignore_eos=ignore)) for ignore in (False, True)]
    )
    assert (stopped.finish_reason, stopped.stop, stopped.token_ids[-1]) == ("stop", eos, eos)
    assert (ignored.finish_reason, len(ignored.token_ids)) == ("length", 40)
    assert ignored.token_ids[: len(stopped.token_ids)] == stopped.token_ids


def test_generation_config_lists_further_end_tokens(module, tokenizer, generate_all, monkeypatch):
    prompt = random_prompts(1)[0]
    token = generate_all(HFEngine(module, tokenizer), [(prompt, Sampling(max_tokens=9))])[0].token_ids[0]
    monkeypatch.setattr(module.generation_config, "eos_token_id", [token, 1])
    completion = generate_all(HFEngine(module, tokenizer), [(prompt, Sampling(max_tokens=9))])[0]
    assert (completion.token_ids, completion.stop) == ([token], token)


def test_context_limit_ends_with_length(module, tokenizer, generate_all):
    prompt = list(range(3, 13))
    sampling = Sampling(ignore_eos=True)
    short, long = HFEngine(module, tokenizer, max_model_len=16), HFEngine(module, tokenizer)
    assert [len(c.token_ids) for c in generate_all(short, [(prompt, sampling)] * 2)] == [6, 6]
    completion = generate_all(long, [(prompt, sampling), (prompt[:2], sampling)])
    assert [len(c.token_ids) for c in completion] == [54, 62]
    assert {c.finish_reason for c in completion} == {"length"}


def test_abort_returns_what_there_is(engine):
    sampling = Sampling(max_tokens=50, ignore_eos=True)

    async def main():
        running = asyncio.create_task(engine.generate(Request([5, 6], sampling, request_id="a")))
        other = asyncio.create_task(engine.generate(Request([5, 6], replace(sampling, seed=1), request_id="b")))
        while engine.stats()["batches"] == 0:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        engine.abort("a")
        return await running, await other

    aborted, whole = asyncio.run(main())
    assert aborted.finish_reason == "abort"
    assert 1 <= len(aborted.token_ids) == len(aborted.log_probs) < 50
    assert (whole.finish_reason, len(whole.token_ids)) == ("length", 50)
    assert engine.stats()["aborted"] == 1


def test_abort_before_the_first_step_is_empty(engine):
    async def main():
        task = asyncio.create_task(engine.generate(Request([5, 6], Sampling(max_tokens=4), request_id="a")))
        await asyncio.sleep(0)
        engine.abort("a")
        return await task

    completion = asyncio.run(main())
    assert (completion.token_ids, completion.finish_reason) == ([], "abort")
    assert engine.stats()["batches"] == 0


def test_a_cancelled_caller_does_not_disturb_the_rest(engine, generate_all):
    sampling = Sampling(max_tokens=30, ignore_eos=True)
    expected = generate_all(engine, [([7, 8], sampling)])[0]

    async def main():
        given_up = asyncio.create_task(engine.generate(Request([5, 6], sampling, request_id="a")))
        kept = asyncio.create_task(engine.generate(Request([7, 8], sampling, request_id="b")))
        while engine.stats()["batches"] < 2:
            await asyncio.sleep(0)
        given_up.cancel()
        return await kept

    assert asyncio.run(main()).token_ids == expected.token_ids


def test_admits_in_order_not_in_order_of_arrival(module, tokenizer):
    engine = HFEngine(module, tokenizer, max_num_seqs=1)
    finished = []

    async def one(order):
        await engine.generate(Request([5], Sampling(max_tokens=1), request_id=str(order), order=order))
        finished.append(order)

    async def main():
        await asyncio.gather(*[one(order) for order in [(2, 0, 0), (0, 1, 0), (10, 0, 0), (0, 0, 3)]])

    asyncio.run(main())
    assert finished == [(0, 0, 3), (0, 1, 0), (2, 0, 0), (10, 0, 0)]


def test_training_mode_and_gradients_come_back(module, engine, generate_all):
    module.train()
    try:
        completion = generate_all(engine, [([5, 6], Sampling(max_tokens=3))])[0]
        assert module.training and all(child.training for child in module.modules())
        assert torch.is_grad_enabled()
    finally:
        module.eval()
    assert completion.token_ids == generate_all(engine, [([5, 6], Sampling(max_tokens=3))])[0].token_ids


def test_publish_sets_the_version_and_copies_foreign_weights(tiny_folder, tokenizer, generate_all):
    module = AutoModelForCausalLM.from_pretrained(tiny_folder)
    engine = HFEngine(module, tokenizer)
    greedy = [([5, 6], Sampling(temperature=0, max_tokens=8, ignore_eos=True))]
    before = generate_all(engine, greedy)[0]
    name, weight = "model.norm.weight", torch.linspace(-30, 30, 32)
    engine.publish([{name: weight}], 7)
    after = generate_all(engine, greedy)[0]
    assert (before.policy_version, after.policy_version) == (0, 7)
    assert (
        torch.equal(module.get_parameter(name), weight) and module.get_parameter(name).data_ptr() != weight.data_ptr()
    )
    assert after.token_ids != before.token_ids
    with pytest.raises(RolloutError, match=r"'model\.other' is not part of Qwen2ForCausalLM"):
        engine.publish([{"model.other": weight}], 8)
    with pytest.raises(RolloutError, match="the last publish failed"):
        generate_all(engine, greedy)
    engine.publish(({name: weight} for name, weight in module.state_dict().items()), 9)
    assert generate_all(engine, greedy)[0].policy_version == 9


def test_publish_is_refused_while_requests_run(engine):
    async def main():
        task = asyncio.create_task(engine.generate(Request([5], Sampling(max_tokens=20), request_id="a")))
        await asyncio.sleep(0)
        try:
            engine.publish(None, 1)
        finally:
            await task

    with pytest.raises(RolloutError, match="while requests are running"):
        asyncio.run(main())


def test_stats_count_tokens(engine, generate_all):
    generate_all(engine, [([5, 6, 7], Sampling(max_tokens=4, ignore_eos=True))] * 3)
    assert engine.stats() == {
        "requests": 3, "aborted": 0, "prompt_tokens": 9, "generated_tokens": 12, "batches": 1,
    }  # fmt: skip


def test_a_loop_that_died_leaves_nothing_behind(engine, generate_all):
    async def dies():
        asyncio.create_task(engine.generate(Request([5], Sampling(max_tokens=40), request_id="0")))  # noqa: RUF006
        await asyncio.sleep(0)
        raise KeyError("the loop fails")

    with pytest.raises(KeyError):
        asyncio.run(dies())
    assert len(generate_all(engine, [([5], Sampling(max_tokens=2, ignore_eos=True))])[0].token_ids) == 2


def test_a_failing_forward_reaches_every_caller(engine, generate_all, monkeypatch):
    def broken(*args, **kwargs):
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(engine.module, "forward", broken)
        with pytest.raises(RolloutError, match="request 0: MemoryError: no room"):
            generate_all(engine, [([5], Sampling(max_tokens=4))] * 2)
    assert generate_all(engine, [([5], Sampling(max_tokens=1))])[0].token_ids


def test_a_step_is_a_registered_wait(engine, generate_all, monkeypatch):
    forward, seen = engine.module.forward, set()

    def looked(*args, **kwargs):
        seen.update((wait.kind, wait.owner, wait.subject, wait.seconds) for wait in longest())
        return forward(*args, **kwargs)

    monkeypatch.setattr(engine.module, "forward", looked)
    generate_all(engine, [([5, 6], Sampling(max_tokens=3, ignore_eos=True, seed=i)) for i in range(2)])
    assert ("engine", "the rollout engine", "a step of 2 sequences", 1800) in seen and not longest()


def test_nan_logits_are_an_error(tiny_folder, tokenizer, generate_all):
    module = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with torch.no_grad():
        module.get_parameter("model.norm.weight").fill_(float("nan"))
    with pytest.raises(RolloutError, match="logits are NaN"):
        generate_all(HFEngine(module, tokenizer), [([5], Sampling(max_tokens=4))])


def test_sleeping_engines_refuse(engine, generate_all):
    engine.sleep()
    with pytest.raises(RolloutError, match="call wake"):
        generate_all(engine, [([5], Sampling(max_tokens=4))])
    engine.wake()
    assert generate_all(engine, [([5], Sampling(max_tokens=1))])[0].token_ids


def test_models_with_other_caches_are_refused(tokenizer, generate_all):
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, state_size=4)
    engine = HFEngine(MambaForCausalLM(config), tokenizer, max_model_len=32)
    with pytest.raises(NotAvailable, match="MambaForCausalLM"):
        generate_all(engine, [([5], Sampling(max_tokens=4))])


@pytest.mark.parametrize(
    ("prompt", "images", "error", "message"),
    [
        ([], None, RolloutError, "the prompt is empty"),
        ([5] * 64, None, RolloutError, "has 64 tokens and the context holds 64"),
        ([5, 99_999], None, RolloutError, "token id 99999 is outside the model's vocabulary of"),
        ([5], ["cat.png"], NotAvailable, "images"),
        ([5], None, RolloutError, "request same is already running"),
    ],
)
def test_requests_that_are_refused(engine, prompt, images, error, message):
    async def main():
        request = Request(prompt, Sampling(max_tokens=4), request_id="same", images=images)
        await asyncio.gather(*(engine.generate(request) for _ in range(2 if "running" in message else 1)))

    with pytest.raises(error, match=message):
        asyncio.run(main())


def test_engines_by_name(module, tokenizer):
    engine = make_engine("hf", module, tokenizer, RolloutConfig(max_num_seqs=3, max_model_len=40))
    assert (type(engine), engine.max_num_seqs, engine.context) == (HFEngine, 3, 40)
    with pytest.raises(ConfigError, match=r"package vllm, .*rollout\.name=native"):
        make_engine("vllm", module, tokenizer, RolloutConfig())
    with pytest.raises(ConfigError, match=r"rollout\.name=vlm: unknown rollout engine; .* hf"):
        make_engine("vlm", module, tokenizer, RolloutConfig())


def test_config_that_does_not_fit_the_model(module, tokenizer):
    with pytest.raises(ConfigError, match=r"max_model_len=100: the model's context is 64"):
        make_engine("hf", module, tokenizer, RolloutConfig(max_model_len=100))
    with pytest.raises(ConfigError, match=r"rollout\.dtype=bfloat16: .* which are float32"):
        make_engine("hf", module, tokenizer, RolloutConfig(dtype="bfloat16"))
