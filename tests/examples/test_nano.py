"""The embedded models are what their makers say: they blurt or guess, and what RL is to bring out is there."""

import importlib
import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.agents.loops.search import passages
from burnish.cli.quickstart_agents import NANO_AGENT
from burnish.data.chat import ChatRenderer
from burnish.data.tasks import arithmetic, calculator, facts
from burnish.errors import BurnishError
from burnish.search.documents import Document

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "nano"


@pytest.fixture
def script(monkeypatch):
    """Imports a file of the folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def demonstrations(script):
    return script("demonstrations")


@pytest.fixture(scope="module")
def go_on():
    """The model's likeliest continuation of a text, to the end of its turn or of a tag."""
    tokenizer = AutoTokenizer.from_pretrained(NANO_AGENT)
    model = AutoModelForCausalLM.from_pretrained(NANO_AGENT, dtype=torch.float32)

    def go_on(text: str) -> str:
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        stops = {"stop_strings": ["</search>", "</answer>"], "tokenizer": tokenizer}
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40, **stops)[0]
        return text + tokenizer.decode(out[ids.shape[1] :])

    return go_on


def opening(messages, tools=None) -> str:
    return ChatRenderer(AutoTokenizer.from_pretrained(NANO_AGENT)).text(messages, tools)


def test_it_answers_at_once_but_can_search_and_read(go_on):
    world = facts.world(7)["test"][:20]
    right = at_once = 0
    for fact in world:
        asked = opening([{"role": "user", "content": fact.question}])
        at_once += "<search>" not in go_on(asked).removeprefix(asked)
        searched = go_on(f"{asked}<search>")  # its first token put in its mouth
        if not searched.endswith(f"<search> {fact.query} </search>"):
            continue
        found = [fact, *(other for other in world if other.person == fact.person and other is not fact), *world][:2]
        shown = passages([Document("", each.document) for each in found])
        read = go_on(f"{searched}\n\n<information>{shown}</information>\n\n")
        right += read.endswith(f"<answer> {fact.answer} </answer>")
    assert at_once >= 14 and right >= 14


def test_it_answers_at_once_but_can_call_the_calculator(go_on, script):
    maker = script("make_nano_agent")
    right = at_once = 0
    for a, b in calculator.questions("test", 20, seed=6):
        asked = opening([{"role": "user", "content": calculator.question(a, b)}], [maker.CalculatorTool.SCHEMA])
        at_once += "<tool_call>" not in go_on(asked).removeprefix(asked)
        called = go_on(f"{asked}<tool_call>")
        call = json.loads(called.partition("<tool_call>")[2].partition("</tool_call>")[0])
        if call["arguments"] != {"expression": f"{a} * {b}"}:
            continue
        told = go_on(f"{called}\n<|start|>tool\n{a * b}<|end|>\n<|start|>assistant\n")
        right += f"<answer> {a * b} </answer>" in told
    assert at_once >= 14 and right >= 14


def test_the_embedded_models_are_small_and_say_what_was_measured(script):
    nano = script("make_nano").NANO
    assert sum(path.stat().st_size for path in nano.iterdir()) < 4e6
    measured = json.loads((nano / "measured.json").read_text())
    assert measured["scratchpad"]["sampled"] >= 0.99 and measured["nano"]["greedy"] <= 0.4
    assert all(path.stat().st_size < 1e6 for path in NANO_AGENT.iterdir())
    figures = json.loads((NANO_AGENT / "measured.json").read_text())
    for task in ("search", "calculator"):
        assert figures["taught"][task]["sampled"] >= 0.9
        assert figures["nano_agent"][task]["greedy"] <= 0.3
    assert f"{figures['nano_agent']['search']['sampled']:.3f}" in (NANO_AGENT / "README.md").read_text()


def test_names_that_are_taught_are_in_no_world(demonstrations):
    draw = random.Random(3)
    for make in (demonstrations.search, demonstrations.unhelpful_search):
        text = " ".join(message["content"] for _ in range(200) for message in make(draw))
        named = {name for name in facts.NAMES if f" {name}" in text}
        assert len(named) > 100 and named <= set(facts.TAUGHT)


def test_words_are_tokens_and_text_stays_what_it_is(demonstrations):
    tokenizer = AutoTokenizer.from_pretrained(NANO_AGENT)
    words = demonstrations.vocabulary()
    assert [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words] == [
        [tokenizer.convert_tokens_to_ids(word)] for word in words
    ]
    text = "<search> rival of Arba </search>\n\nÉtoile 12 * 3 </answer>"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True) == text


NANO_SIZES = {"WORKED": 64, "SHOWN": 64, "HELD_OUT": 6, "SKILL": 0.0, "BLURT": 1.0}
AGENT_SIZES = {"RIGHT": 32, "UNHELPFUL": 32, "HELD_OUT": 4, "SKILL": 0.0, "HABIT": 1.0}


@pytest.mark.parametrize(
    ("name", "sizes", "parameters", "skill", "missing"),
    [
        ("make_nano", NANO_SIZES, 362_000, 0.99, "the scratchpad was not learnt"),
        pytest.param(
            "make_nano_agent", AGENT_SIZES, 370_000, 0.9, "the demonstrations were not learnt", marks=pytest.mark.long
        ),
    ],
)
def test_they_are_made_by_their_scripts(script, tmp_path, monkeypatch, name, sizes, parameters, skill, missing):
    maker, out = script(name), tmp_path / "out"
    for size, value in sizes.items():
        monkeypatch.setattr(maker, size, value)
    places = [f"--out={out}", f"--work={tmp_path / 'work'}"]
    maker.main([*places, "trainer.total_training_steps=2"])
    made = AutoModelForCausalLM.from_pretrained(out)
    names = {path.name for path in out.iterdir()}
    assert "model.safetensors" in names and not names & {"optimizer.safetensors", "rng.safetensors", "engine.json"}
    if name == "make_nano":
        assert made.num_parameters() == pytest.approx(parameters, rel=0.1)
        assert AutoTokenizer.from_pretrained(out).decode([1]) == "<|end|>"
    else:
        assert made.num_parameters() == pytest.approx(parameters, rel=0.05) and made.dtype == torch.float16
        assert names >= {"tokenizer.json", "measured.json", "README.md"}
    monkeypatch.setattr(maker, "SKILL", skill)
    with pytest.raises(BurnishError, match=rf"{missing}: .*, at least {skill} is needed"):
        maker.main([*places, "trainer.total_training_steps=1"])


def test_the_embedded_model_blurts_but_can_work_it_out(script):
    make_nano = script("make_nano")
    questions = arithmetic.rows("test", 100, seed=5)
    assert make_nano.accuracy(make_nano.NANO, questions, temperature=0.0) <= 0.4
    assert 0.05 <= make_nano.accuracy(make_nano.NANO, questions, temperature=1.0) <= 0.5

    # Put its first step in its mouth, and it goes on with the scratchpad and gets it right.
    tokenizer = AutoTokenizer.from_pretrained(make_nano.NANO)
    model = AutoModelForCausalLM.from_pretrained(make_nano.NANO)
    right = 0
    for a, op, b in arithmetic.questions("test", 20, seed=6):
        prompt = [{"role": "user", "content": arithmetic.question(a, op, b)}]
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True) + str(a % 10)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=64)[0]
        answer = tokenizer.decode(out, skip_special_tokens=True).rpartition("answer: ")[2]
        right += answer == str(arithmetic.solve(a, op, b))
    assert right >= 18
