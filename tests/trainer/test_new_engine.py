"""Adding a rollout engine is adding a folder (`tests/rollout/toy`) and a line in the table: nothing else knows it."""

import pytest

from burnish.config import load_ppo
from burnish.errors import ConfigError, NotAvailable
from burnish.rollout import ENGINES
from burnish.serving.loading import ModelOptions, load
from burnish.trainer import setup
from tests.rollout.toy.engine import ToyEngine
from tests.serving.conftest import NANO, serving

ROLLOUT = "actor_rollout_ref.rollout"
TOY, AHEAD = f"{ROLLOUT}.name=toy", ["trainer.async_rollout.enable=true", "trainer.async_rollout.staleness=1"]


@pytest.fixture(autouse=True)
def table_line(monkeypatch):
    monkeypatch.setitem(ENGINES, "toy", "tests.rollout.toy.spec")


def test_it_trains_and_validates(build_trainer, metrics_of):
    grpo = ["algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=2", f"{ROLLOUT}.engine_kwargs.toy.patience=3"]
    trainer = build_trainer(TOY, *grpo, "trainer.total_training_steps=2", "trainer.test_freq=1")
    engine = trainer.policy.worker.engine.engine
    assert isinstance(engine, ToyEngine) and engine.patience == 3
    trainer.fit()
    _, *steps = metrics_of("run")
    assert [step["training/global_step"] for step in steps if step["actor/grad_norm"] > 0] == [1, 2]
    gaps = [step["rollout_corr/training_ppl"] / step["rollout_corr/rollout_ppl"] for step in steps]
    assert gaps == pytest.approx([1.0, 1.0], abs=1e-4), "its log-probs are those of the trained weights"
    assert any(name.startswith("val-") for name in steps[-1])


def test_it_serves():
    model = load(ModelOptions(str(NANO), device="cpu", engine="toy"))
    with serving(model) as running:
        question = {"role": "user", "content": "12+30=?"}
        ask = {"model": "nano", "messages": [question], "max_tokens": 24, "logprobs": True}
        answer = running.client().chat.completions.create(**ask, temperature=0)
        assert "answer: " in answer.choices[0].message.content
        assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens
        with pytest.raises(Exception, match="the toy rollout engine takes 0 .greedy., or 0.5 to 1"):
            running.client().chat.completions.create(**ask, temperature=1.5)


def test_it_is_planned_for_and_keys_that_it_ignores_are_reported(job, reward, capsys):
    loaded = load_ppo([*job, TOY, f"{ROLLOUT}.enable_chunked_prefill=true", "--plan"])
    setup.prepare(loaded)
    assert f"no effect: {ROLLOUT}.enable_chunked_prefill (the toy engine reads whole prompts)" in loaded.notices
    setup.run(loaded)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory: toy")]
    assert line.endswith("one sequence of 40 tokens")


@pytest.mark.parametrize(
    ("keys", "error", "words"),
    [
        ([f"{ROLLOUT}.engine_kwargs.toy.speed=1"], ConfigError, r"engine_kwargs\.toy\.speed: the toy engine takes pat"),
        (["actor_rollout_ref.model.lora_rank=4"], NotAvailable, rf"a LoRA adapter with {ROLLOUT}\.name=toy"),
        ([f"{ROLLOUT}.temperature=1.5"], ConfigError, r"temperature=1\.5: the toy rollout engine takes 0 .*0\.5 to 1"),
        ([f"{ROLLOUT}.tensor_model_parallel_size=2"], NotAvailable, "several devices"),
        (AHEAD, ConfigError, rf"{ROLLOUT}\.name=toy: this engine cannot take new weights while it generates"),
    ],
)
def test_its_rules_hold(job, reward, keys, error, words):
    with pytest.raises(error, match=words):
        setup.prepare(load_ppo([*job, TOY, *keys]))
