"""load_interactions: a user's own interactions by name, and mistakes in their file told with the entry and the fix."""

import asyncio

import pytest

from burnish.agents.interactions.gsm8k import Gsm8kInteraction
from burnish.agents.interactions.load import load_interactions
from burnish.errors import ConfigError

OWN = """
from burnish.agents.interactions import BaseInteraction

class Patient(BaseInteraction):
    async def generate_response(self, instance_id, messages, **kwargs):
        return len(messages) > self.config["patience"], "hm", 0.0, {}

class Broken(BaseInteraction):
    def __init__(self, config):
        self.level = config["level"]
    async def generate_response(self, instance_id, messages, **kwargs): ...

class Other: ...
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "own.py").write_text(OWN)

    def write(text):
        path = tmp_path / "interactions.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_own_interactions_stand_next_to_the_built_in_ones(file):
    built_in = load_interactions(None)
    assert list(built_in) == ["gsm8k"] and isinstance(built_in["gsm8k"], Gsm8kInteraction)
    path = file("interaction: [{name: patient, class_name: 'own.py:Patient', config: {patience: 2}}]")
    found = load_interactions(path)
    assert sorted(found) == ["gsm8k", "patient"]
    instance = asyncio.run(found["patient"].start_interaction())
    assert asyncio.run(found["patient"].generate_response(instance, [{}, {}, {}]))[0] is True


def test_an_entry_may_take_the_place_of_a_built_in_one(file):
    dotted = "burnish.agents.interactions.gsm8k.Gsm8kInteraction"
    path = file(
        f"interaction:\n- {{name: gsm8k, class_name: own.py:Patient}}\n- {{name: usual, class_name: {dotted}}}\n"
    )
    found = load_interactions(path)
    assert type(found["gsm8k"]).__name__ == "Patient" and isinstance(found["usual"], Gsm8kInteraction)
    found = load_interactions(file("interaction: [{name: gsm8k, config: {method: flexible}}]"))
    assert found["gsm8k"].config == {"method": "flexible"}


@pytest.mark.parametrize(
    "text, told",
    [
        ("[", "cannot be read"),
        ("interaction: []", "expected `interaction:` and a list of entries"),
        ("interaction: [x]", "entry 0: an entry needs a name and a class_name, got 'x'"),
        ("interaction: [{config: {}}]", "entry 0: an entry needs a name and a class_name"),
        ("interaction: [{name: a}]", "entry 0 (a): class_name is missing"),
        ("interaction: [{name: a, class_nam: b}]", "unknown key 'class_nam'; it has name, class_name, config; did"),
        ("interaction: [{name: a, class_name: own.py:Patients}]", "did you mean Patient?"),
        ("interaction: [{name: a, class_name: none.py:A}]", "there is no file none.py in"),
        ("interaction: [{name: a, class_name: own.py:Other}]", "is not a subclass of BaseInteraction"),
        ("interaction: [{name: a, class_name: own.py:Broken}]", "(a): making it with config={} failed"),
        ("interaction: [{name: a, class_name: own.py:Patient, config: 3}]", "config=3 is not a mapping"),
        ("interaction: [{name: gsm8k, config: {metod: x}}]", "(gsm8k): config.metod: the gsm8k interaction has no"),
        ("interaction: [{name: gsm8k, config: {method: x}}]", "config.method='x': write strict or flexible"),
        ("interaction: [{name: gsm8k}, {name: gsm8k}]", "entry 1: there is another entry named gsm8k"),
    ],
)  # fmt: skip
def test_mistakes_in_the_file_are_reported_with_entry_and_fix(file, text, told):
    path = file(text)
    with pytest.raises(ConfigError) as error:
        load_interactions(path)
    assert str(error.value).startswith(f"actor_rollout_ref.rollout.multi_turn.interaction_config_path={path}")
    assert told in str(error.value)
