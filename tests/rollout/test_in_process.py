"""What the engines that run a module in this process have in common: `hf`, and `native` with steps queued ahead or not.

Tokens, log-probs and ends are those of plain forward passes (`native/exact.py`), whatever else is in the batch.
"""

import asyncio
import copy
import weakref
from dataclasses import replace

import pytest
import torch

from burnish.config.rollout import RolloutConfig
from burnish.errors import ConfigError, NotAvailable, RolloutError, WorkerError
from burnish.rollout import make_engine
from burnish.rollout.base import Request, Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.native.engine import NativeEngine
from tests.rollout.asking import LONG, outcomes, start, until
from tests.rollout.native.exact import EOS, check_exact, greedy, random_prompts, random_requests
from tests.rollout.native.models import FAMILIES, GROUPED, build, family
from tests.rollout.test_sampler import WAYS

PROMPT = random_prompts(1, seed=5, shortest=9, longest=9)[0]
FREE = Sampling(max_tokens=20, ignore_eos=True)
GREEDY = [(prompt, Sampling(temperature=0, max_tokens=12, ignore_eos=True)) for prompt in random_prompts(3, seed=2)]
KINDS = {"hf": None, "native": {"ahead": 0}, "native ahead 1": {"ahead": 1, "block_size": 16}}
KINDS |= {"native ahead 3": {"ahead": 3}}


@pytest.fixture(params=KINDS)
def make(request, native, tokenizer):
    kind = KINDS[request.param]
    if kind is None:
        return lambda module, **settings: HFEngine(module, tokenizer, **settings)
    return lambda module, **settings: native(module, **kind, **settings)


@pytest.fixture
def engine(make, module):
    return make(module)


def tokens(completions):
    return [completion.token_ids for completion in completions]


# What is sampled


@pytest.mark.parametrize("settings", [{}, {"max_num_seqs": 5}, {"max_num_batched_tokens": 40}, {"max_num_seqs": 1}])
def test_mixed_requests_give_exactly_what_a_plain_forward_gives(make, module, context, settings):
    requests = random_requests(24)
    engine = make(module, **settings)
    completions = engine.run(requests)
    check_exact(module, requests, completions, context=context)
    if isinstance(engine, HFEngine):
        assert engine.stats()["batches"] == -(-24 // min(24, settings.get("max_num_seqs", 24)))
    assert make(module, **settings).run(requests) == completions, "bit for bit"


def test_every_way_to_sample(make, module, context):
    """That `sample` draws by these probabilities is shown in `test_sampler.py`; all at once, so that rows with and
    without truncation share their batches."""
    ways = [way for way, _ in WAYS]
    kinds = [*ways, *({"temperature": temperature} for temperature in (50.0, 0.01, 0.001))]
    requests = [(PROMPT, replace(FREE, seed=seed, **kind)) for kind in kinds for seed in range(3)]
    completions = make(module).run(requests)
    assert [c.token_ids for c in completions[-3:]] == [greedy(module, PROMPT, 20, eos_token_id=None)] * 3
    # With the cold ones log-probs are of logits times 1,000, and so is what rounding does to them.
    check_exact(module, requests[:-6], completions[:-6], context=context)


def test_seed_decides_the_tokens(engine, module, context):
    seeds = (1, 1, 2, 2**64 - 1, 2**63 - 1)  # seeds have 64 bits and no sign
    requests = [(PROMPT, replace(FREE, seed=seed)) for seed in seeds]
    completions = engine.run(requests)
    assert completions[0].token_ids == completions[1].token_ids and len(set(map(tuple, tokens(completions)))) == 4
    check_exact(module, requests, completions, context=context)
    assert engine.run([]) == []


# What ends a completion


def test_stop_ids_end_and_are_kept(engine):
    """Also more of them than the device holds, wherever the one that ends it is listed."""
    whole = engine.run([(PROMPT, FREE)])[0].token_ids
    others = [token for token in range(3, 259) if token not in whole][:11]
    stops = [(token, (token,)) for token in whole]
    stops += [(whole[6], (*others[:place], whole[6], *others[place:])) for place in (0, 7, 8, 11)]
    requests = [(PROMPT, FREE), *((PROMPT, replace(FREE, stop_token_ids=ids)) for _, ids in stops)]
    free, *cut = engine.run(requests)
    assert free.token_ids == whole
    for completion, (token, _) in zip(cut, stops, strict=True):
        assert completion.token_ids == whole[: whole.index(token) + 1]
        assert (completion.finish_reason, completion.stop) == ("stop", token)


def test_stop_string_across_tokens_keeps_the_completing_token(engine, module, tokenizer, context):
    tries = [replace(FREE, seed=seed, top_k=20) for seed in range(40)]
    for i, completion in enumerate(engine.run([(PROMPT, sampling) for sampling in tries])):
        sampling, whole = tries[i], completion.token_ids
        text = tokenizer.decode(whole[4:7])
        if text.isascii() and len(text) == 3 and text not in tokenizer.decode(whole[:6]):
            break
    else:
        raise AssertionError("no completion with three plain characters")
    stopping = replace(sampling, stop=(text, "never there"))
    ends = [stopping, sampling, replace(stopping, stop_token_ids=(whole[6],)), replace(stopping, max_tokens=7)]
    cut, free, both, at_the_limit = engine.run([(PROMPT, end) for end in ends])
    assert (cut.finish_reason, cut.stop, cut.token_ids) == ("stop", text, whole[:7]) and len(cut.log_probs) == 7
    assert free.token_ids == whole
    assert both.stop == whole[6] and at_the_limit.stop == text, "id before string, string before length"
    seen, before = [], engine.stats()["generated_tokens"]
    streamed = asyncio.run(engine.generate(Request(PROMPT, stopping, "a"), lambda *token: seen.append(token)))
    assert streamed.token_ids == whole[:7] and seen == list(zip(whole, streamed.log_probs, strict=False))
    assert 7 <= engine.stats()["generated_tokens"] - before <= 7 + 3  # some were under way when it was found
    follow_up = [*PROMPT, *whole[:7], 5, 6]  # the next turn continues what was kept, not from what was cut
    check_exact(module, [(follow_up, FREE)], engine.run([(follow_up, FREE)]), context=context)


def test_end_of_sequence_stops_unless_ignored(make, module, engine, monkeypatch):
    sampling = Sampling(max_tokens=40, temperature=4.0)
    tries = engine.run([(PROMPT, replace(sampling, seed=seed)) for seed in range(60)])
    seed = next(seed for seed, c in enumerate(tries) if EOS in c.token_ids and len(c.token_ids) > 1)
    ends = [{}, {"ignore_eos": True}, {"ignore_eos": True, "stop_token_ids": (EOS,)}]
    stopped, ignored, asked = engine.run([(PROMPT, replace(sampling, seed=seed, **end)) for end in ends])
    assert (stopped.finish_reason, stopped.stop, stopped.token_ids[-1]) == ("stop", EOS, EOS)
    assert (ignored.finish_reason, len(ignored.token_ids)) == ("length", 40)
    assert ignored.token_ids[: len(stopped.token_ids)] == stopped.token_ids == asked.token_ids
    first = ignored.token_ids[0]
    monkeypatch.setattr(module.generation_config, "eos_token_id", [first, EOS])  # which may list further ones
    completion = make(module).run([(PROMPT, replace(sampling, seed=seed))])[0]
    assert (completion.token_ids, completion.stop) == ([first], first)


def test_max_tokens_and_the_context_limit_end_with_length(make, module, engine, context):
    prompt, free = list(range(3, 13)), replace(FREE, max_tokens=None)
    counts = [1, 2, 3, 15]
    completions = engine.run([(prompt, replace(FREE, max_tokens=count)) for count in counts])
    completions += make(module, max_model_len=16).run([(prompt, free), (prompt[:2], free), (prompt + [5] * 5, free)])
    completions += engine.run([(prompt, free), (prompt[:2], free), (prompt, replace(FREE, max_tokens=1000))])
    assert list(map(len, tokens(completions))) == [*counts, 6, 14, 1, context - 10, context - 2, context - 10]
    assert {(c.finish_reason, c.stop) for c in completions} == {("length", None)}


def test_a_learned_position_table_is_used_to_its_end(make):
    module = build("gpt2", {}, context=32)
    free = Sampling(ignore_eos=True)
    requests = [(list(range(3, 33)), free), *[([5, 6], replace(free, seed=seed)) for seed in (1, 2)]]
    completions = make(module).run(requests)
    assert list(map(len, tokens(completions))) == [2, 30, 30]
    check_exact(module, requests, completions, context=32)


# Callers that leave


@pytest.mark.parametrize("watched", [True, False])
def test_abort_returns_what_there_is_and_leaves_others_alone(engine, watched):
    (whole,) = engine.run([([5, 6], LONG)])

    async def main():
        seen, before = [], engine.stats()["generated_tokens"]
        running = start(engine, "a", on_token=(lambda token, _: seen.append(token)) if watched else None)
        other = start(engine, "b", sampling=replace(LONG, seed=1))
        await until(lambda: engine.stats()["generated_tokens"] > before + 10)
        engine.abort("a")
        count = len(seen)
        aborted = await running
        assert len(seen) == count, "nothing comes after the end"
        return aborted, seen, await other

    aborted, seen, other = asyncio.run(main())
    count = len(aborted.token_ids)
    assert (aborted.finish_reason, aborted.stop) == ("abort", None) and 4 <= count < 50
    assert aborted.token_ids == whole.token_ids[:count] and (not watched or seen == aborted.token_ids)
    assert aborted.log_probs == pytest.approx(whole.log_probs[:count], abs=1e-4)
    assert (other.finish_reason, len(other.token_ids)) == ("length", 50)
    assert engine.stats()["aborted"] == 1


def test_abort_before_the_first_step_while_waiting_and_of_what_is_not_there(make, module):
    engine = make(module, max_num_seqs=1)

    async def main():
        early = start(engine, "early")
        await asyncio.sleep(0)
        engine.abort("early")
        assert ((await early).token_ids, engine.stats()["generated_tokens"]) == ([], 0)
        first, second, third = (start(engine, name) for name in "abc")
        await until(lambda: engine.stats()["generated_tokens"] > 3)
        engine.abort("b")
        aborted = await second
        assert (aborted.token_ids, aborted.finish_reason) == ([], "abort") and not first.done()
        third.cancel()
        await until(third.done)
        last = await first
        engine.abort("a")
        engine.abort("nobody")
        return last

    assert len(asyncio.run(main()).token_ids) == 50
    assert engine.stats()["aborted"] == 2


def test_a_cancelled_caller_disturbs_nobody(engine):
    (expected,) = engine.run([([7, 8], LONG)])

    async def main():
        before = engine.stats()["generated_tokens"]
        given_up, kept = start(engine, "a"), start(engine, "b", prompt=(7, 8))
        await until(lambda: engine.stats()["generated_tokens"] > before + 30)  # they have all blocks they need
        used = engine.stats().get("kv_blocks_used", 1)
        given_up.cancel()
        await until(lambda: engine.stats().get("kv_blocks_used", 0) < used)
        again = start(engine, "a")  # its id is free
        return await kept, await again

    kept, again = asyncio.run(main())
    assert kept.token_ids == expected.token_ids and len(again.token_ids) == 50


def test_a_loop_that_died_leaves_nothing_behind(engine):
    expected = engine.run([([5, 6], LONG)])[0].token_ids

    async def dies():
        before = engine.stats()["generated_tokens"]
        left = [start(engine, "0"), start(engine, "1", prompt=(7, 8, 9))]
        await until(lambda: engine.stats()["generated_tokens"] > before and left)
        raise KeyError("the loop fails")

    for _ in range(3):
        with pytest.raises(KeyError):
            asyncio.run(dies())
    assert engine.run([([5, 6], LONG)])[0].token_ids == expected
    engine.publish(None, 1)
    assert not engine.stats().get("kv_blocks_cached")


# Which requests are taken


def test_admits_in_order_not_in_order_of_arrival(make, module):
    engine = make(module, max_num_seqs=1)
    finished = []

    async def main():
        for order in [(2, 0, 0), (0, 1, 0), (10, 0, 0), (0, 0, 3)]:
            task = start(engine, str(order), sampling=Sampling(max_tokens=1), order=order)
            task.add_done_callback(lambda _, order=order: finished.append(order))
        await until(lambda: len(finished) == 4)

    asyncio.run(main())
    assert finished == [(0, 0, 3), (0, 1, 0), (2, 0, 0), (10, 0, 0)]


@pytest.mark.parametrize(
    ("prompt", "images", "error", "message"),
    [
        ([], (), RolloutError, "request same: the prompt is empty"),
        ([5] * 64, (), RolloutError, "request same: the prompt has 64 tokens and the context holds 64"),
        ([5, 99_999], (), RolloutError, "request same: token id 99999 is outside the model's vocabulary of"),
        ([5, -1], (), RolloutError, "request same: token id -1 is outside"),
        ([5], ["cat.png"], NotAvailable, "images"),
    ],
)
def test_requests_that_are_refused(engine, prompt, images, error, message):
    async def main():
        first = start(engine, "same")
        await asyncio.sleep(0)
        with pytest.raises(RolloutError, match="request same is already running"):
            await start(engine, "same")
        await first
        await engine.generate(Request(prompt, Sampling(max_tokens=4), request_id="same", images=images))

    with pytest.raises(error, match=message):
        asyncio.run(main())


def test_sleeping_engines_refuse(engine):
    async def main():
        task = start(engine, "a")
        await until(lambda: engine.stats()["generated_tokens"])
        if engine.runs_on:
            with pytest.raises(RolloutError, match="given back while requests are running"):
                engine.sleep()
        else:
            with pytest.raises(RolloutError, match="weights cannot change while requests are running"):
                engine.publish(None, 1)
        return await task

    assert len(asyncio.run(main()).token_ids) == 50
    engine.sleep()
    with pytest.raises(RolloutError, match=r"call wake\(\)"):
        engine.run(GREEDY)
    engine.wake()
    assert engine.run(GREEDY)[0].token_ids


@pytest.mark.parametrize(("name", "kind"), [("hf", HFEngine), ("native", NativeEngine)])
def test_engines_by_name(module, tokenizer, name, kind, one_by_one):
    engine = make_engine(name, module, tokenizer, RolloutConfig(max_num_seqs=3, max_model_len=40))
    assert (type(engine), engine.max_num_seqs, engine.context, engine.step_deadline_s) == (kind, 3, 40, 1800)
    assert tokens(engine.run(GREEDY)) == tokens(one_by_one(module, GREEDY))
    with pytest.raises(ConfigError, match=r"max_model_len=100: the model's context is 64"):
        make_engine(name, module, tokenizer, RolloutConfig(max_model_len=100))
    with pytest.raises(ConfigError, match=r"rollout\.dtype=bfloat16: .* which are float32"):
        make_engine(name, module, tokenizer, RolloutConfig(dtype="bfloat16"))
    with pytest.raises(ConfigError, match=r"rollout\.name=vlm: unknown rollout engine; .* hf"):
        make_engine("vlm", module, tokenizer, RolloutConfig())


# Steps that fail


@pytest.mark.parametrize(
    "error,message",
    [
        (MemoryError("no room"), "request {name}: MemoryError: no room"),
        (RolloutError("lost"), "request {name}: lost"),
        (ConfigError("mend this"), "mend this"),
        (NotAvailable("this model", "Use another"), "not available yet: this model. Use another"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_each_caller_of_a_failed_step_gets_its_own_error(engine, swap_decoder, error, message):
    expected = engine.run([([5, 6], LONG)])[0].token_ids
    broken = True

    def fails():
        if broken:
            raise error

    swap_decoder(engine, lambda function: lambda *args, **kwargs: fails() or function(*args, **kwargs))

    errors = outcomes(engine, {name: (5, 6 + i) for i, name in enumerate("abc")})
    assert [str(e) for e in errors] == [message.format(name=name) for name in "abc"]
    assert len({id(e) for e in errors}) == 3 and error not in errors
    assert all(e.__cause__ is error for e in errors)
    broken = False
    assert engine.run([([5, 6], LONG)])[0].token_ids == expected


def test_nan_logits_name_every_request_and_the_first(make, module):
    sick = copy.deepcopy(module)
    with torch.no_grad():
        sick.get_input_embeddings().weight[200] = float("nan")  # only sequences with this token meet it
    sampled = [(prompt, replace(FREE, seed=seed)) for seed, prompt in enumerate(random_prompts(12, 1, vocabulary=199))]
    expected = make(module).run(sampled)
    healthy = [i for i, completion in enumerate(expected) if 200 not in completion.token_ids]
    assert len(healthy) >= 3
    engine = make(sick)
    prompts = {"well": (5, 6), "sick": (5, 200)}
    for _ in range(2):
        for name, error in zip(prompts, outcomes(engine, prompts), strict=True):
            assert str(error).startswith(f"request {name}: the model's logits are NaN or infinite, first for request s")
    # Blocks are given out again, and nothing that is not a number comes with them.
    assert tokens(engine.run([sampled[i] for i in healthy])) == [expected[i].token_ids for i in healthy]


# Weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_foreign_weights_are_copied_in(make, one_by_one, dtype):
    module = family("qwen2")
    engine = make(module)
    where = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
    before = engine.run(GREEDY)
    foreign = {name: tensor.to(dtype) for name, tensor in build("qwen2", GROUPED, seed=8).state_dict().items()}
    engine.publish([foreign], 3)
    assert {name: parameter.data_ptr() for name, parameter in module.named_parameters()} == where
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, foreign[name].float()) and tensor.data_ptr() != foreign[name].data_ptr()
    after = engine.run(GREEDY)
    assert tokens(after) == tokens(one_by_one(module, GREEDY)) != tokens(before)
    assert ({c.policy_version for c in before}, {c.policy_version for c in after}) == ({0}, {3})
    engine.publish([{"model.norm.weight": torch.linspace(-3, 3, 32)}], 4)
    assert torch.equal(module.get_parameter("model.norm.weight"), torch.linspace(-3, 3, 32))
    engine.publish([module.state_dict()], 5)  # the module's own
    assert tokens(engine.run(GREEDY)) == tokens(one_by_one(module, GREEDY))


def test_a_bucket_is_made_when_the_one_before_is_taken_over_and_let_go(make):
    module, foreign = family("qwen2"), build("qwen2", GROUPED, seed=8)
    engine, made = make(module), []

    def buckets():
        for name, tensor in foreign.state_dict().items():
            for before, reference in made:
                assert reference() is None, f"{before} is still held"
                assert torch.equal(module.state_dict()[before], foreign.state_dict()[before])
            fresh = tensor.clone()
            made.append((name, weakref.ref(fresh)))
            bucket = {name: fresh}
            del fresh
            yield bucket
            del bucket

    engine.publish(buckets(), 3)
    assert len(made) == len(module.state_dict())
    check_exact(foreign, GREEDY, engine.run(GREEDY), context=96)


def test_after_a_publish_that_failed_nothing_is_generated_until_one_succeeds(make):
    module, foreign = family("qwen2"), build("qwen2", GROUPED, seed=8).state_dict()
    engine = make(module)
    engine.publish(None, 1)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def broken():
        yield {"model.norm.weight": foreign["model.norm.weight"]}
        raise WorkerError("rank 3 is gone")

    norm, absent = {"model.norm.weight": torch.zeros(3)}, {"model.other": torch.zeros(3)}
    failing = [
        (RolloutError, r"'model\.other' is not part of Qwen2ForCausalLM", [absent]),
        (RolloutError, r"'model\.norm\.weight' is \(3,\), and the module's is \(32,\)", [norm]),
        (RolloutError, "no weight was published", iter([])),
        (WorkerError, "rank 3 is gone", broken()),
    ]
    for error, message, buckets in failing:
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
        with pytest.raises(error, match=message):
            engine.publish(buckets, 2)
        assert engine.version == 1
        for _ in range(2):
            with pytest.raises(RolloutError, match=r"request run/0: the last publish failed.*publish again"):
                engine.run(GREEDY)
    engine.publish(iter([foreign]), 2)
    completions = engine.run(GREEDY)
    assert {c.policy_version for c in completions} == {2}
    check_exact(module, GREEDY, completions, context=96)


@pytest.mark.parametrize("apart", [False, True], ids=["one bucket", "each its own"])
def test_tied_names_with_different_tensors_are_refused(make, apart):
    module = build(*FAMILIES["qwen2-tied"])
    engine = make(module)
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= weights.keys()

    def buckets(weights):
        return ({name: tensor} for name, tensor in weights.items()) if apart else [weights]

    engine.publish(buckets(weights), 1)  # equal ones are welcome
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        different = weights | {name: weights[name] * 1.5}
        with pytest.raises(RolloutError, match=r"'(model\.embed_tokens|lm_head)\.weight' did not arrive: "):
            engine.publish(buckets(different), 2)
        assert engine.version == 1
    engine.publish(buckets(weights), 3)
    check_exact(module, GREEDY, engine.run(GREEDY), context=96)
