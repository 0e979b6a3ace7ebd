"""`native` and `hf` that are lost in the middle of requests are replaced, in the caller's loop and in a thread."""

import logging
import time

import pytest
import torch

from burnish.errors import RolloutError
from burnish.rollout.base import Sampling
from burnish.rollout.engine_loop import EngineLoop
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.native.engine import NativeEngine
from burnish.rollout.native.runner import Stuck
from burnish.rollout.replacing import ReplacingEngine
from tests.rollout.asking import log_is_whole

KERNELS = Stuck("the rollout engine is stuck: the kernels of a step have not ended within 300 s")
ENDED = SystemExit("enough")


def make(name, module, tokenizer):
    if name == "hf":
        return HFEngine(module, tokenizer, max_num_seqs=16)
    return NativeEngine(module, tokenizer, max_num_seqs=16, blocks=160, block_size=8, prefix_caching=False)


@pytest.fixture
def replacing(module, tokenizer):
    made = []

    def around(name, place):
        engine = make(name, module, tokenizer)
        made.append(ReplacingEngine(EngineLoop(engine) if place == "thread" else engine))
        return made[-1]

    yield around
    for engine in made:
        engine.close()


def lose(monkeypatch, engine, error, calls, count):
    """The n-th call of the module, or the decoder, raises; the engine has `count` requests by then."""
    current, left = engine.engine, calls
    inner = current._engine if isinstance(current, EngineLoop) else current
    owner, method = (inner.runner, "decoder") if isinstance(inner, NativeEngine) else (inner.module, "forward")
    function = getattr(owner, method)

    def call(*args, **kwargs):
        nonlocal left
        left -= 1
        if left == 0:
            while current.in_flight < count:
                time.sleep(0.001)
            raise error
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, method, call)


def requests(count=6):
    return [([5, 6 + i, 7], Sampling(max_tokens=6 + i, seed=i, ignore_eos=True)) for i in range(count)]


@pytest.fixture
def changed(module):
    weight = module.get_input_embeddings().weight
    before = weight.detach().clone()
    yield {"model.embed_tokens.weight": before.flip(0)}
    with torch.no_grad():
        weight.copy_(before)


@pytest.mark.parametrize(
    ("name", "place", "error"),
    [("native", "here", KERNELS), ("native", "thread", KERNELS), ("native", "thread", ENDED), ("hf", "thread", ENDED)],
    ids=["native here", "native in a thread", "the thread of native", "the thread of hf"],
)
@pytest.mark.parametrize("calls", [1, 5])
def test_new_engine_answers_with_the_weights_last_published(
    replacing, module, tokenizer, changed, monkeypatch, caplog, name, place, error, calls
):
    """Requests come from other loops at their own pace, so in a thread batches, and rounding, may be others."""
    old = make(name, module, tokenizer).run(requests())
    engine = replacing(name, place)
    engine.publish([changed], 3)
    expected = make(name, module, tokenizer).run(requests())
    lose(monkeypatch, engine, error, calls, 6)
    with caplog.at_level(logging.WARNING, "burnish.rollout.replacing"):
        found = engine.run(requests())
        log_is_whole(engine)
    assert [c.token_ids for c in found] == [c.token_ids for c in expected] != [c.token_ids for c in old]
    for one, other in zip(found, expected, strict=True):
        assert one.log_probs == (other.log_probs if place == "here" else pytest.approx(other.log_probs, abs=1e-4))
    assert {completion.policy_version for completion in found} == {3}
    counts = engine.stats()
    assert counts["replica_restarts"] == 1 and counts["requests_again"] == 6
    begun = counts["requests"] - 6  # by the lost engine: in a thread, those that came before its last call
    assert begun == 6 if place == "here" else 1 <= begun <= 6
    assert engine.in_flight == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "burnish.rollout.replacing"]
    assert lines[0].startswith("the rollout engine is lost (") and str(error) in lines[0]
    assert lines[1:] == ["a new rollout engine (restart 1) has the weights; requests sent again: 6"]


@pytest.mark.parametrize("name", ["native", "hf"])
def test_publish_that_failed_half_way_stays_refused(module, tokenizer, changed, name):
    engine = make(name, module, tokenizer)
    engine.publish(None, 2)
    with pytest.raises(RolloutError, match="is not part of"):
        engine.publish([changed, {"other": torch.zeros(1)}], 3)
    new = engine.renewed()
    assert type(new) is type(engine) and new.version == 2 and new.max_num_seqs == 16
    with pytest.raises(RolloutError, match="the last publish failed"):
        new.run(requests(1))
    new.publish(None, 4)
    assert new.run(requests(1))[0].policy_version == 4
