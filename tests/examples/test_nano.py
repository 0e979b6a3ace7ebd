"""The embedded model is what its maker says: it blurts, and the skill that RL is to bring out is there."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.data.tasks import arithmetic
from burnish.errors import BurnishError

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "nano" / "make_nano.py"


@pytest.fixture
def make_nano():
    spec = importlib.util.spec_from_file_location("make_nano", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_embedded_model_blurts_but_can_work_it_out(make_nano):
    questions = arithmetic.rows("test", 100, seed=5)
    assert make_nano.accuracy(make_nano.NANO, questions, temperature=0.0) <= 0.4
    assert 0.05 <= make_nano.accuracy(make_nano.NANO, questions, temperature=1.0) <= 0.5

    # Put its first step in its mouth, and it goes on with the scratchpad and gets it right.
    tokenizer, model = (
        AutoTokenizer.from_pretrained(make_nano.NANO),
        AutoModelForCausalLM.from_pretrained(make_nano.NANO),
    )
    right = 0
    for a, op, b in arithmetic.questions("test", 20, seed=6):
        prompt = [{"role": "user", "content": arithmetic.question(a, op, b)}]
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) + str(a % 10)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=64)[0]
        answer = tokenizer.decode(out, skip_special_tokens=True).rpartition("answer: ")[2]
        right += answer == str(arithmetic.solve(a, op, b))
    assert right >= 18


def test_the_embedded_model_is_small_and_says_what_was_measured(make_nano):
    assert sum(path.stat().st_size for path in make_nano.NANO.iterdir()) < 4e6
    measured = json.loads((make_nano.NANO / "measured.json").read_text())
    assert measured["scratchpad"]["sampled"] >= 0.99
    assert measured["nano"]["greedy"] <= 0.4


def test_it_is_made_by_the_sft_recipes(make_nano, tmp_path, monkeypatch):
    for name, value in {"WORKED": 64, "SHOWN": 64, "HELD_OUT": 6, "SKILL": 0.0, "BLURT": 1.0}.items():
        monkeypatch.setattr(make_nano, name, value)
    places = [f"--out={tmp_path / 'out'}", f"--work={tmp_path / 'work'}"]
    make_nano.main([*places, "trainer.total_training_steps=2"])
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").num_parameters() == pytest.approx(362_000, rel=0.1)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").decode([1]) == "<|end|>"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in names and not names & {"optimizer.safetensors", "rng.safetensors", "engine.json"}

    monkeypatch.setattr(make_nano, "SKILL", 0.99)
    with pytest.raises(BurnishError, match=r"the scratchpad was not learnt: .*, at least 0.99 is needed"):
        make_nano.main([*places, "trainer.total_training_steps=1"])
