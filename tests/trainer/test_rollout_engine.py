"""The rollout engine in a run: its figures in the metrics, its memory for training meanwhile, its weights current."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from burnish.config.model import ModelConfig
from burnish.config.rollout import RolloutConfig
from burnish.models.loading import load_causal_lm
from burnish.rollout.base import Sampling
from burnish.rollout.hf.engine import HFEngine
from burnish.rollout.native.engine import NativeEngine
from tests.trainer.conftest import jsonl, same

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
ONE = "trainer.total_training_steps=1"
KEEP = "actor_rollout_ref.rollout.free_cache_engine=false"
ASKED = [5, 6, 7]


def engine_of(trainer):
    return trainer.policy.worker.engine.engine


def greedy(trainer):
    """Log-probs of what the engine says next, and those of the module itself."""
    engine = engine_of(trainer)
    [completion] = engine.run([(ASKED, Sampling(temperature=0, max_tokens=4, ignore_eos=True))])
    ids = torch.tensor([[*ASKED, *completion.token_ids]])
    with torch.no_grad():
        plain = torch.log_softmax(engine.module.eval()(ids).logits[0, 2:-1], dim=-1)
    return completion.log_probs, plain.gather(1, ids[0, 3:, None])[:, 0].tolist()


def test_the_metrics_of_a_step_say_what_the_engine_did(train):
    metrics = train(*GRPO, ONE)
    prompts = 4 * metrics["prompt_length/mean"]
    assert metrics["rollout/prefill_tokens"] == pytest.approx(prompts)  # of a group once
    assert metrics["rollout/shared_tokens"] == pytest.approx(2 * prompts)
    assert metrics["rollout/generated_tokens"] == metrics["perf/generated_tokens"]
    assert metrics["rollout/steps"] == metrics["response_length/max"] - 1  # the first token comes with the prompt
    assert metrics["rollout/prefix_hit_tokens"] == metrics["rollout/preemptions"] == 0
    assert 0 < metrics["timing_s/engine"] <= metrics["timing_s/gen"]
    speed = metrics["rollout/generated_tokens"] / metrics["timing_s/engine"]
    assert metrics["perf/rollout_tokens_per_s"] == pytest.approx(speed)


def test_every_step_and_every_round_counts_for_itself(build_trainer, reward):
    """And rounds of a step do not wait for memory between them."""
    reward('return 0.0 if extra_info["index"] % 2 else float(len(solution_str))')
    filters = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=3"]
    trainer = build_trainer(*GRPO, *filters, "data.gen_batch_size=2", "trainer.total_training_steps=2")
    calls = counted(engine_of(trainer), "_make_pool")
    trainer.fit()
    assert calls["_make_pool"] == 1, "before the second step"
    for step in jsonl("run/metrics.jsonl"):
        assert step["rollout/generated_tokens"] == step["perf/generated_tokens"]
        assert step["filter_groups/rounds"] > 1 and step["rollout/steps"] >= step["filter_groups/rounds"]


def test_an_engine_that_counts_less_has_fewer_metrics(build_trainer):
    assert RolloutConfig().name == "native" and type(engine_of(build_trainer(*GRPO))) is NativeEngine
    trainer = build_trainer(*GRPO, ONE, "actor_rollout_ref.rollout.name=hf")
    assert type(engine_of(trainer)) is HFEngine
    metrics = trainer.fit()
    assert [name for name in metrics if name.startswith("rollout/")] == ["rollout/generated_tokens"]
    assert not {"timing_s/engine", "perf/rollout_tokens_per_s"} & metrics.keys()


@pytest.mark.parametrize(("keys", "count"), [([], 1), ([KEEP], 0)], ids=["given back", "kept"])
def test_the_kv_pool_is_given_back_while_the_policy_trains(build_trainer, keys, count):
    trainer = build_trainer(*GRPO, ONE, *keys, "actor_rollout_ref.actor.use_kl_loss=true")
    worker, engine, held = trainer.policy.worker, engine_of(trainer), {}
    for name in ("infer", "forward_backward"):
        run = getattr(worker.actor, name)

        def noted(*arguments, name=name, run=run, **named):
            held.setdefault(name, set()).add(engine.stats()["kv_blocks"] > 0)
            return run(*arguments, **named)

        setattr(worker.actor, name, noted)
    calls = counted(engine, "sleep", "wake")
    trainer.fit()
    kept = count == 0
    assert held == {"infer": {kept}, "forward_backward": {kept}}
    assert (calls["sleep"] > 0) == (not kept)
    assert (engine.stats()["kv_blocks"] == 0) == (not kept)  # the run ends after an update


def counted(thing, *names):
    calls = Counter()
    for name in names:
        method = getattr(thing, name)

        def call(*arguments, name=name, method=method):
            calls[name] += 1
            return method(*arguments)

        setattr(thing, name, call)
    return calls


@pytest.mark.parametrize("keys", [[], [KEEP]], ids=["given back", "kept"])
def test_after_a_step_the_next_token_comes_from_the_new_weights(build_trainer, keys):
    trainer = build_trainer(*GRPO, ONE, *keys, "actor_rollout_ref.actor.optim.lr=0.05")
    before = greedy(trainer)[0]
    trainer.fit()
    trainer.policy.update_weights(1)
    said, expected = greedy(trainer)
    assert said == pytest.approx(expected, abs=1e-5) and said != pytest.approx(before, abs=1e-3)


def test_a_checkpoint_is_loaded_into_the_engine_too(build_trainer):
    trainer = build_trainer(*GRPO, "trainer.save_freq=1", ONE, "actor_rollout_ref.actor.optim.lr=0.05")
    trainer.fit()
    trained = trainer.policy.worker.actor.module.state_dict()
    other = build_trainer(*GRPO, KEEP, ONE)
    start = greedy(other)[0]  # whose keys and values are now cached
    other.policy.load_checkpoint(Path("run/global_step_1/actor"))
    assert same(trained, engine_of(other).module.state_dict())
    said, expected = greedy(other)
    assert said == pytest.approx(expected, abs=1e-5) and said != pytest.approx(start, abs=1e-3)


def test_a_checkpoint_is_independent_of_the_engine(train):
    for name in ("native", "hf"):
        train(*GRPO, ONE, "trainer.save_freq=1", f"actor_rollout_ref.rollout.name={name}",
              f"trainer.default_local_dir={name}")  # fmt: skip
    for file in ("config.json", "generation_config.json", "engine.json"):
        one, other = (Path(run, "global_step_1", "actor", file).read_text() for run in ("native", "hf"))
        assert one == other and "burnish" not in one
    one, other = (load_causal_lm(f"{run}/global_step_1/actor", ModelConfig()) for run in ("native", "hf"))
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(tensor, other.state_dict()[name], atol=1e-4, rtol=0)
