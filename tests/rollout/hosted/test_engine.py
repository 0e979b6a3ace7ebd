"""A hosted engine from end to end, with a program that counts: what it samples is the last token plus its version."""

import asyncio
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from burnish.config.rollout import RolloutConfig
from burnish.errors import EngineLost, NotAvailable, RolloutError
from burnish.rollout.base import Request, Sampling
from burnish.rollout.hosted.engine import HEARTBEAT_S, HostedState, _short_folder, environment
from burnish.rollout.hosted.keeper import members
from burnish.rollout.hosted.process import HostedTokens
from burnish.rollout.hosted.weights import Proof
from tests.rollout.asking import from_threads, in_time, start
from tests.rollout.hosted.counting import CountingEngine


@pytest.fixture(scope="module")
def shared(module, tokenizer, tmp_path_factory):
    engine = CountingEngine(module, tokenizer, RolloutConfig(), tmp_path_factory.mktemp("logs"))
    yield engine
    engine.close()


@pytest.fixture
def engine(shared, module):
    shared.publish(weights(module), 1)
    return shared


@pytest.fixture
def make(module, tokenizer, tmp_path):
    """`make(heartbeat_s)`: an engine of its own, with weights as version 1. It may be lost or closed."""
    made = []

    def begin(heartbeat_s=None):
        made.append(CountingEngine(module, tokenizer, RolloutConfig(), tmp_path, heartbeat_s))
        made[-1].publish(weights(module), 1)
        return made[-1]

    yield begin
    for engine in made:
        engine.close()
        assert not engine.weights.path.exists() and not Path(engine._place.name).exists()


def weights(module):
    return [dict(module.named_parameters())]


def one(engine, **how):
    (completion,) = engine.run([([3], Sampling(**{"max_tokens": 4, "ignore_eos": True} | how))])
    return completion


def under_way(engine, then):
    """Completions of two requests, of which one is told its tokens. They come no further than 8 tokens (seed 7) until
    something happens; `then` is called when both have some."""

    async def ask():
        begun, tokens = asyncio.Event(), []

        def note(*token):
            tokens.append(token)
            if len(tokens) == 8:
                begun.set()

        sampling = Sampling(max_tokens=20, ignore_eos=True, seed=7)
        calls = [start(engine, "silent", [3], sampling), start(engine, "told", [3], sampling, on_token=note)]
        await begun.wait()
        await asyncio.to_thread(then)
        return await asyncio.gather(*calls, return_exceptions=True)

    return in_time(ask())


def test_it_generates_and_stops_at_ids_and_strings_that_come(engine, tokenizer):
    assert engine.process._heartbeat_s == HEARTBEAT_S["cpu"] > HEARTBEAT_S["cuda"]
    assert engine.process._call_s == 2 * HEARTBEAT_S["cpu"], "new weights wait for a step"
    before = engine.stats()
    assert set(before) == {"requests", "aborted", "prompt_tokens", "generated_tokens"}
    completion = one(engine)
    counts = {"requests": 1, "aborted": 0, "prompt_tokens": 1, "generated_tokens": 4}
    assert {name: count - before[name] for name, count in engine.stats().items()} == counts
    assert (completion.token_ids, completion.finish_reason, completion.policy_version) == ([4, 5, 6, 7], "length", 1)
    text = tokenizer.decode([5, 6])
    for stop, how in ((6, {"stop_token_ids": (6,)}), (text, {"stop": (text,)})):
        completion = one(engine, max_tokens=9, **how)
        assert (completion.token_ids, completion.stop) == ([4, 5, 6], stop)


# Weights


def test_new_weights_take_over_what_runs(engine, module):
    for completion in under_way(engine, lambda: engine.publish(weights(module), 10)):
        versions = completion.token_versions()
        assert versions == [1] * 8 + [10] * 12
        steps = [b - a for a, b in zip([3, *completion.token_ids], completion.token_ids, strict=False)]
        assert [step % 100 for step in steps] == versions
        assert completion.policy_version == 1


def test_a_request_that_comes_during_a_publish_is_answered(engine, module):
    """While weights are written, with the old ones; while they are loaded it waits for the new ones."""
    found, call, waits = {}, engine.process.call, []

    def ask(name):
        found[name] = one(engine, max_tokens=2)

    def buckets():
        ask("written")
        yield from weights(module)

    def slow(method, *arguments, **named):
        if method == "open":
            waits.append(threading.Thread(target=ask, args=("loaded",)))
            waits[0].start()
            while engine.in_flight == 0:
                time.sleep(0.001)
        return call(method, *arguments, **named)

    engine.process.call = slow
    try:
        engine.publish(buckets(), 4)
    finally:
        del engine.process.call
    waits[0].join(60)
    assert (found["written"].policy_version, found["written"].token_ids) == (1, [4, 5])
    assert (found["loaded"].policy_version, found["loaded"].token_ids) == (4, [7, 11])


def test_after_a_publish_that_failed_requests_are_refused(engine, module):
    """In the buckets, or because the weights do not give the log-probs that are expected of this version."""

    def broken():
        yield from weights(module)
        raise ValueError("the last bucket")

    engine.expect(Proof(2, [1, 2, 3], [-1.0, -1.4], 0.25))
    engine.publish(weights(module), 2)
    engine.expect(Proof(3, [1, 2, 3], [-1.0, -1.6], 0.25))
    unexpected = "Counter does not compute what the actor does with version 3.*differ by 0.3"
    for error, words, buckets in (
        (ValueError, "the last bucket", broken()),
        (RolloutError, unexpected, weights(module)),
    ):
        with pytest.raises(error, match=words):
            engine.publish(buckets, 3)
        with pytest.raises(RolloutError, match="the last publish failed"):
            one(engine)
    engine.publish(weights(module), 4)
    assert one(engine).policy_version == 4, "that was of another version"


# Requests that end otherwise


def test_an_abort_gives_what_there_is_also_while_weights_are_missing(engine):
    before = engine.stats()["aborted"]
    for prepare in (lambda: None, lambda: engine.process.call("load", [], 2)):

        def strike(prepare=prepare):
            prepare()
            for name in ("silent", "told", "told"):  # twice, which counts once
                engine.abort(name)

        for completion in under_way(engine, strike):
            assert completion.finish_reason == "abort" and completion.token_ids == [*range(4, 12)]
        engine.process.call("open")
    assert engine.stats()["aborted"] == before + 4


@pytest.mark.parametrize("last", [2, 4])
def test_an_error_of_the_caller_s_own_function_rises(engine, last):
    told = []

    def tell(*token):
        told.append(token)
        if len(told) == last:
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        in_time(engine.generate(Request([3], Sampling(max_tokens=4, ignore_eos=True), "told"), tell))
    assert engine.in_flight == 0 and len(told) == last


@pytest.mark.parametrize(
    ("seed", "words"),
    [
        (13, "request run/0: Counter: ValueError: seed 13"),
        (17, r"request run/0: it was ended \(repetition\) after 1 of 4 tokens"),
        (19, "without a request to end it"),
        (23, "seed 23"),
    ],
)
def test_one_request_fails_alone(engine, seed, words):
    """By an error of the program, by an end that nobody asked for, or because it cannot be asked for."""
    with pytest.raises(RolloutError, match=words):
        one(engine, seed=seed)
    assert engine.in_flight == 0
    assert one(engine).token_ids == [4, 5, 6, 7]


@pytest.mark.parametrize("log_prob", [float("nan"), float("-inf"), float("inf")])
def test_a_log_prob_that_is_no_number_ends_its_request(log_prob):
    async def told():
        future = asyncio.get_running_loop().create_future()
        request = HostedState("r", [3], Sampling(), 9, frozenset(), None, future)
        request.take(HostedTokens([5, 6], [-1.0, log_prob], 3, None), 3)
        return await future

    with pytest.raises(RolloutError, match=rf"request r: the log-prob of token 1 is {log_prob}: .*version 3"):
        asyncio.run(told())


def test_several_event_loops_ask_at_once(engine):
    sampling = Sampling(max_tokens=4, ignore_eos=True)
    completions = from_threads(lambda i: start(engine, str(i), [3], sampling), 9)
    assert [completion.token_ids for completion in completions] == [[4, 5, 6, 7]] * 9


def test_a_loop_that_ends_leaves_its_request_behind(engine):

    async def ask():
        left = start(engine, "left", [3], Sampling(max_tokens=20, ignore_eos=True, seed=7))
        await asyncio.sleep(0.05)
        assert not left.done()

    asyncio.run(ask())
    assert engine.in_flight == 0
    assert one(engine).token_ids == [4, 5, 6, 7]


# Programs that are lost


def test_a_closed_loop_keeps_nobody_from_hearing_of_a_loss(make):
    engine, loop = make(), asyncio.new_event_loop()

    async def ask():
        task = start(engine, "left", [3])
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(ask())
    loop.close()  # with the request in flight
    assert len(engine._flights) == 1 and not task.done()
    engine.process._lose("of this test")
    assert engine.process._ended.is_set()
    task._log_destroy_pending = False


@pytest.mark.parametrize(
    ("asked", "heartbeat_s", "words"),
    [
        (66, 60.0, "Counter is lost: it was told to die"),
        (77, 30.0, "it could not be asked for a sign of life: KeyError: 'a figure'"),
    ],
)
def test_one_that_is_lost_says_why_and_is_renewed_with_its_weights(
    make, module, tmp_path, monkeypatch, asked, heartbeat_s, words
):
    """By the error that says it is dead, or by another one. Where it cannot be renewed, no program is left."""
    engine, made, begin = make(heartbeat_s), [], CountingEngine._start
    engine.publish(weights(module), 5)

    def strike():
        with suppress(EngineLost):  # the next sign of life may be asked for at once
            engine.log_probs_of([asked])

    for error in under_way(engine, strike):
        assert isinstance(error, EngineLost) and words in str(error)
    assert engine.lost() is not None and engine.in_flight == 0
    renewed = engine.renewed()
    try:
        assert (renewed.version, renewed.lost(), renewed.stats()["requests"]) == (5, None, 0)
        assert one(renewed, max_tokens=2).token_ids == [8, 13]
        assert len(list(tmp_path.glob("counting-*.log"))) == 2
        renewed.process._lose("of this test")
        renewed.weights.digests["lm_head.weight"] = "0"

        def noted(self):
            begin(self)
            made.append(self.process)

        monkeypatch.setattr(CountingEngine, "_start", noted)
        with pytest.raises(RolloutError, match="did not arrive"):
            renewed.renewed()
        assert [members(process.pid) for process in made] == [[]]
    finally:
        renewed.close()


def test_a_renewal_waits_for_weights_that_are_being_written(make, module):
    engine, renewed = make(), []
    renewal = threading.Thread(target=lambda: renewed.append(engine.renewed()))

    def buckets():
        engine.process._lose("of this test")
        renewal.start()
        for name, parameter in module.named_parameters():
            time.sleep(0.05)
            yield {name: parameter}

    try:
        with pytest.raises(EngineLost):
            engine.publish(buckets(), 2)
        renewal.join(200)
        assert renewed[0].version == 2 and one(renewed[0]).token_ids[0] == 5
    finally:
        for made in renewed:
            made.close()


# Before it starts


def test_before_the_first_weights_it_refuses_and_its_log_stays_only_after_a_loss(module, tokenizer):
    for is_lost in (False, True):
        engine = CountingEngine(module, tokenizer, RolloutConfig())
        with pytest.raises(RolloutError, match="no weights have been published to Counter yet"):
            one(engine)
        with pytest.raises(RolloutError, match="its own copy of the weights"):
            engine.publish(None, 1)
        if is_lost:
            engine.process._lose("of this test")
        engine.close()
        assert engine.process.log_file.exists() == is_lost
    engine.process.log_file.unlink()


def test_a_model_with_custom_code_is_refused(module, tokenizer, monkeypatch):
    monkeypatch.setattr(type(module.config), "__module__", "transformers_modules.somebody.configuration")
    with pytest.raises(NotAvailable, match=r"rollout.name=counting for Qwen2ForCausalLM, a model with custom code"):
        CountingEngine(module, tokenizer, RolloutConfig())


def test_a_temporary_folder_that_is_too_long_for_sockets_is_not_used(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = _short_folder("burnish-vllm-")
    assert len(folder.name) < 40 and list(long.iterdir()) == []
    folder.cleanup()


def test_what_the_user_set_comes_before_defaults_and_after_what_is_fixed(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_A_TEST", "user")
    found = environment(tmp_path, {"OF_A_TEST": "default", "ANOTHER": "default"}, {})
    assert (found["OF_A_TEST"], found["ANOTHER"], found["TMPDIR"]) == ("user", "default", str(tmp_path))
    assert environment(tmp_path, {}, {"OF_A_TEST": "fixed"})["OF_A_TEST"] == "fixed"
