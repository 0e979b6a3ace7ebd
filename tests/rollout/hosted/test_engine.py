"""A hosted engine from end to end, with a program that counts: what it samples is the last token plus its version."""

import asyncio
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.config.rollout import RolloutConfig
from burnish.errors import EngineLost, NotAvailable, RolloutError
from burnish.rollout import load_engine
from burnish.rollout.base import Request, Sampling
from burnish.rollout.hosted.engine import HEARTBEAT_S, HostedEngine, _short_folder
from burnish.rollout.hosted.group import members
from burnish.rollout.hosted.weights import Proof
from burnish.rollout.native.spec import SPEC


@pytest.fixture(scope="module")
def kind(program):
    class CountingEngine(HostedEngine):
        name, label, host = "counting", "Counter", "counting_host_of_a_test"

        @classmethod
        def ensure_usable(cls, module):
            pass

        def _engine_arguments(self, config, folder, model):
            assert [file.name for file in folder.iterdir()] == ["config.json"]
            return {}

        def _process_environment(self, temporary):
            return os.environ | {"PYTHONPATH": os.pathsep.join([str(program), *sys.path])}

        def _request_arguments(self, request):
            return {}

    return CountingEngine


@pytest.fixture(scope="module")
def shared(kind, module, tokenizer, tmp_path_factory):
    engine = kind(module, tokenizer, RolloutConfig(), tmp_path_factory.mktemp("logs"))
    yield engine
    engine.close()


@pytest.fixture
def engine(shared, module):
    shared.publish([dict(module.named_parameters())], 1)
    return shared


def weights(module):
    return [dict(module.named_parameters())]


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
        calls = [
            asyncio.ensure_future(engine.generate(Request([3], sampling, request_id="silent"))),
            asyncio.ensure_future(engine.generate(Request([3], sampling, request_id="told"), on_token=note)),
        ]
        await begun.wait()
        await asyncio.get_running_loop().run_in_executor(None, then)
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)

    return asyncio.run(ask())


def test_how_long_it_may_be_silent_is_up_to_the_device(engine):
    assert engine.process._heartbeat_s == HEARTBEAT_S["cpu"] > HEARTBEAT_S["cuda"]
    assert engine.process._call_s == 2 * HEARTBEAT_S["cpu"], "new weights wait for a step"


def test_stats_have_only_known_counters(engine):
    assert set(engine.stats()) == {"requests", "aborted", "prompt_tokens", "generated_tokens"}


def test_it_generates(engine):
    (completion,) = engine.run([([3], Sampling(max_tokens=4, ignore_eos=True))])
    assert (completion.token_ids, completion.finish_reason, completion.policy_version) == ([4, 5, 6, 7], "length", 1)


def test_it_stops_at_ids_and_strings_that_come(engine, tokenizer):
    (by_id,) = engine.run([([3], Sampling(max_tokens=9, stop_token_ids=(6,), ignore_eos=True))])
    assert (by_id.token_ids, by_id.stop) == ([4, 5, 6], 6)
    text = tokenizer.decode([5, 6])
    (by_text,) = engine.run([([3], Sampling(max_tokens=9, stop=(text,), ignore_eos=True))])
    assert (by_text.token_ids, by_text.stop) == ([4, 5, 6], text)


def test_new_weights_take_over_what_runs(engine, module):
    for completion in under_way(engine, lambda: engine.publish(weights(module), 10)):
        versions = completion.token_versions()
        assert versions == [1] * 8 + [10] * 12
        steps = [b - a for a, b in zip([3, *completion.token_ids], completion.token_ids, strict=False)]
        assert [step % 100 for step in steps] == versions
        assert completion.policy_version == 1


def test_an_abort_gives_what_there_is_also_while_weights_are_missing(engine):
    for prepare in (lambda: None, lambda: engine.process.call("load", [], 2)):

        def strike(prepare=prepare):
            prepare()
            engine.abort("silent")
            engine.abort("told")

        for completion in under_way(engine, strike):
            assert completion.finish_reason == "abort" and completion.token_ids == [*range(4, 12)]
        engine.process.call("open")


def test_a_request_that_comes_during_a_publish_is_answered(engine, module):
    """While weights are written, with the old ones; while they are loaded it waits for the new ones."""
    found = {}

    def ask(name):
        found[name] = engine.run([([3], Sampling(max_tokens=2, ignore_eos=True))])[0]

    def buckets():
        ask("written")
        yield from weights(module)

    call, waits = engine.process.call, []

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
    assert [(found[name].policy_version, found[name].token_ids) for name in ("written", "loaded")] == [
        (1, [4, 5]),
        (4, [7, 11]),
    ]


def test_after_a_publish_that_failed_requests_are_refused(engine, module):
    def broken():
        yield from weights(module)
        raise ValueError("the last bucket")

    with pytest.raises(ValueError, match="the last bucket"):
        engine.publish(broken(), 2)
    with pytest.raises(RolloutError, match="the last publish failed"):
        engine.run([([3], Sampling(max_tokens=1))])


def test_weights_that_do_not_give_what_is_expected_are_not_used(engine, module):
    engine.expect(Proof(2, [1, 2, 3], [-1.0, -1.4], 0.25))
    engine.publish(weights(module), 2)
    engine.expect(Proof(3, [1, 2, 3], [-1.0, -1.6], 0.25))
    with pytest.raises(
        RolloutError, match="Counter does not compute what the actor does with version 3.*differ by 0.3"
    ):
        engine.publish(weights(module), 3)
    with pytest.raises(RolloutError, match="the last publish failed"):
        engine.run([([3], Sampling(max_tokens=1))])
    engine.publish(weights(module), 4)
    assert engine.run([([3], Sampling(max_tokens=1))])[0].policy_version == 4, "that was of another version"


@pytest.mark.parametrize("last", [2, 4])
def test_an_error_of_the_caller_s_own_function_rises(engine, last):
    told = []

    def tell(*token):
        told.append(token)
        if len(told) == last:
            raise ValueError("not this one")

    async def ask():
        call = engine.generate(Request([3], Sampling(max_tokens=4, ignore_eos=True), request_id="told"), on_token=tell)
        return await asyncio.wait_for(call, 60)

    with pytest.raises(ValueError, match="not this one"):
        asyncio.run(ask())
    assert engine.in_flight == 0 and len(told) == last


@pytest.mark.parametrize(
    ("seed", "words"),
    [(17, r"request run/0: it was ended \(repetition\) after 1 of 4 tokens"), (19, "without a request to end it")],
)
def test_an_end_that_nobody_asked_for_is_an_error(engine, seed, words):
    with pytest.raises(RolloutError, match=words):
        engine.run([([3], Sampling(max_tokens=4, seed=seed))])


def test_an_abort_counts_once(engine):
    before = engine.stats()["aborted"]

    def strike():
        for name in ("silent", "told", "told"):
            engine.abort(name)

    under_way(engine, strike)
    assert engine.stats()["aborted"] == before + 2


def test_one_request_fails_alone(engine):
    with pytest.raises(RolloutError, match="request run/0: Counter: ValueError: seed 13"):
        engine.run([([3], Sampling(max_tokens=4, seed=13))])
    assert engine.run([([3], Sampling(max_tokens=1))])[0].token_ids == [4]


def test_a_loop_that_ends_leaves_its_request_behind(engine):
    """Nobody is harmed by tokens that come for it."""

    async def ask():
        left = Request([3], Sampling(max_tokens=20, ignore_eos=True, seed=7), request_id="left")
        asyncio.ensure_future(engine.generate(left))  # noqa: RUF006
        await asyncio.sleep(0.05)

    asyncio.run(ask())
    assert engine.in_flight == 0
    assert engine.run([([3], Sampling(max_tokens=1))])[0].token_ids == [4]


def test_a_closed_loop_keeps_nobody_from_hearing_of_a_loss(kind, module, tokenizer, tmp_path):
    engine = kind(module, tokenizer, RolloutConfig(), tmp_path)
    engine.publish(weights(module), 1)
    loop = asyncio.new_event_loop()

    async def ask():
        task = asyncio.ensure_future(engine.generate(Request([3], Sampling(ignore_eos=True), request_id="left")))
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(ask())
    loop.close()  # with the request in flight
    assert len(engine._flights) == 1 and not task.done()
    engine.process._lose("of this test")
    assert engine.process._ended.is_set()
    engine.close()
    assert not engine.weights.path.exists()
    task._log_destroy_pending = False


def test_one_that_is_lost_is_renewed_with_its_weights(kind, module, tokenizer, tmp_path):
    engine = kind(module, tokenizer, RolloutConfig(), tmp_path, heartbeat_s=60.0)
    engine.publish(weights(module), 5)

    def die():
        try:
            engine.log_probs_of([66])
        except EngineLost:
            return

    for error in under_way(engine, die):
        assert isinstance(error, EngineLost) and "Counter is lost: it was told to die" in str(error)
    assert engine.lost() is not None and engine.in_flight == 0
    renewed = engine.renewed()
    try:
        assert (renewed.version, renewed.lost(), renewed.stats()["requests"]) == (5, None, 0)
        assert renewed.run([([3], Sampling(max_tokens=2))])[0].token_ids == [8, 13]
        assert len(list(tmp_path.glob("counting-*.log"))) == 2
    finally:
        renewed.close()
    assert not renewed.weights.path.exists() and not Path(renewed._place.name).exists()


def test_a_program_that_cannot_be_asked_for_a_sign_of_life_is_lost_and_why(kind, module, tokenizer, tmp_path):
    """By another error than the one that says it is dead."""
    engine = kind(module, tokenizer, RolloutConfig(), tmp_path, heartbeat_s=30.0)
    engine.publish(weights(module), 1)

    def strike():
        with suppress(EngineLost):  # the next sign of life may be asked for at once
            assert engine.log_probs_of([77]) == []

    try:
        for error in under_way(engine, strike):
            assert isinstance(error, EngineLost)
            assert "it could not be asked for a sign of life: KeyError: 'a figure'" in str(error)
    finally:
        engine.close()


def test_one_that_cannot_be_renewed_leaves_no_program(kind, module, tokenizer, tmp_path, monkeypatch):
    engine = kind(module, tokenizer, RolloutConfig(), tmp_path)
    try:
        engine.publish(weights(module), 1)
        engine.process._lose("of this test")
        engine.weights.digests["lm_head.weight"] = "0"
        made, start = [], kind._start

        def noted(self):
            start(self)
            made.append(self.process)

        monkeypatch.setattr(kind, "_start", noted)
        with pytest.raises(RolloutError, match="did not arrive"):
            engine.renewed()
        assert [members(process.pid) for process in made] == [[]]
    finally:
        engine.close()


def test_a_renewal_waits_for_weights_that_are_being_written(kind, module, tokenizer, tmp_path):
    """And has those, not a part of them."""
    engine = kind(module, tokenizer, RolloutConfig(), tmp_path)
    engine.publish(weights(module), 1)
    renewed = []
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
        assert renewed[0].version == 2
        assert renewed[0].run([([3], Sampling(max_tokens=1))])[0].token_ids == [5]
    finally:
        for made in [*renewed, engine]:
            made.close()


def test_where_nothing_is_trained_it_is_supervised_too(kind, tiny_folder, tokenizer, monkeypatch):
    monkeypatch.setattr("burnish.rollout.engine_class", lambda name: kind)
    monkeypatch.setattr("burnish.rollout.engine_spec", lambda *choice: replace(SPEC, own_weights=True))
    monkeypatch.setattr("burnish.rollout.hosted.canary.rounding", lambda *about: 10.0)  # its log-probs are all -1
    engine = load_engine(ModelConfig(path=str(tiny_folder)), tokenizer, RolloutConfig(), torch.device("cpu"), "float32")
    try:
        assert engine.run([([3], Sampling(max_tokens=2))])[0].token_ids == [3, 3], "of version 0"
        first = engine.engine
        assert len(first.weights.files) > 5, "never all weights at once"
        first.process._lose("of this test")
        assert engine.run([([3], Sampling(max_tokens=2))])[0].token_ids == [3, 3]
        assert engine.engine is not first
    finally:
        engine.close()
    first.process.log_file.unlink()


def test_before_the_first_weights_it_refuses_and_its_log_stays_only_after_a_loss(kind, module, tokenizer):
    for is_lost in (False, True):
        engine = kind(module, tokenizer, RolloutConfig())
        with pytest.raises(RolloutError, match="no weights have been published to Counter yet"):
            engine.run([([3], Sampling())])
        with pytest.raises(RolloutError, match="its own copy of the weights"):
            engine.publish(None, 1)
        if is_lost:
            engine.process._lose("of this test")
        engine.close()
        assert engine.process.log_file.exists() == is_lost
    engine.process.log_file.unlink()


def test_a_model_with_custom_code_is_refused(kind, module, tokenizer, monkeypatch):
    monkeypatch.setattr(type(module.config), "__module__", "transformers_modules.somebody.configuration")
    with pytest.raises(NotAvailable, match=r"rollout.name=counting for Qwen2ForCausalLM, a model with custom code"):
        kind(module, tokenizer, RolloutConfig())


def test_a_temporary_folder_that_is_too_long_for_sockets_is_not_used(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = _short_folder("burnish-vllm-")
    assert len(folder.name) < 40 and list(long.iterdir()) == []
    folder.cleanup()
