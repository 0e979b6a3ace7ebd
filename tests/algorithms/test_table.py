"""The tables of estimators and losses: names, import paths, a user's own, and what is said about a wrong one."""

import sys

import pytest
import torch

from burnish.algorithms import advantages, losses
from burnish.algorithms.advantages.grpo import grpo
from burnish.algorithms.losses.vanilla import vanilla
from burnish.algorithms.table import AlgorithmTable, Entry
from burnish.config import Needs
from burnish.config.key import keys_of
from burnish.config.needs import OUTPUTS
from burnish.config.ppo import PPOConfig
from burnish.engine import forward
from burnish.errors import ConfigError
from tests.algorithms.helpers import make_advantage_inputs, policy_batch

MODULE = """
from burnish.algorithms.advantages import Needs, register_adv_est

@register_adv_est("centred", needs=Needs(groups=True))
def centred(inputs):
    advantages = inputs.on_tokens(inputs.scores - inputs.groups.mean(inputs.scores))
    return advantages, advantages

def plain(inputs):
    return inputs.on_tokens(inputs.scores), inputs.on_tokens(inputs.scores)

def two_arguments(rewards, mask):
    pass

not_a_function = 3
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """An importable `my_estimators.py`; the tables are as before afterwards."""
    (tmp_path / "my_estimators.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    for table in (advantages.TABLE, losses.TABLE):
        monkeypatch.setattr(table, "entries", dict(table.entries))
    yield "my_estimators"
    sys.modules.pop("my_estimators", None)


@pytest.mark.parametrize("table", [advantages.TABLE, losses.TABLE], ids=lambda table: table.key)
def test_every_entry_can_be_loaded_and_the_key_exists(table):
    assert all(callable(table.load(name)) for name in table.entries)
    assert keys_of(PPOConfig)[table.key].default in table.entries
    assert advantages.needs_of("gae") == Needs(critic=True)
    assert losses.needs_of("vanilla") == Needs(ratio=True, skips_zero_advantage=True)
    assert advantages.estimator("grpo") is grpo and losses.policy_loss("vanilla") is vanilla


def test_an_import_path_or_a_file_needs_no_registration(user_module, tmp_path):
    inputs = make_advantage_inputs([[1.0, 0.0], [0.0, 0.0]], torch.ones(2, 2), ["a", "a"])
    (tmp_path / "in_a_file.py").write_text("def plain(inputs):\n    return inputs.on_tokens(inputs.scores), None\n")
    for path in (f"{user_module}:plain", f"{tmp_path}/in_a_file.py:plain"):
        assert advantages.estimator(path)(inputs)[0].tolist() == [[1.0, 1.0], [0.0, 0.0]]
        assert advantages.needs_of(path) == Needs()
    assert tuple(forward.OUTPUTS) == OUTPUTS, "it may ask for what a pass gives"
    advantages.estimator(f"{user_module}:plain").needs = Needs(outputs=OUTPUTS)
    assert advantages.needs_of(f"{user_module}:plain").outputs == OUTPUTS


def test_a_registered_function_has_its_needs_by_name_and_by_path(user_module):
    assert advantages.needs_of(f"{user_module}:centred") == Needs(groups=True)
    assert advantages.needs_of("centred") == Needs(groups=True)
    inputs = make_advantage_inputs([[1.0, 0.0], [0.0, 0.0]], torch.ones(2, 2), ["a", "a"])
    assert advantages.estimator("centred")(inputs)[0].tolist() == [[0.5, 0.5], [-0.5, -0.5]]

    @losses.register_policy_loss("plain")
    def plain(inputs):
        return inputs.aggregate(-inputs.advantages * inputs.log_prob), {}

    assert losses.policy_loss("plain") is plain and plain(policy_batch())[0].isfinite()


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        ({"groups": True}, "its needs are of type dict; they must be a burnish.config.Needs"),
        (None, "its needs are of type NoneType"),
        (Needs(outputs=("typo",)), r"its needs have outputs=\('typo',\); it must be a tuple of log_prob, entropy, "),
        (Needs(outputs="entropy"), "its needs have outputs='entropy'; it must be a tuple of"),
    ],
)
def test_needs_that_a_run_cannot_read_are_refused_by_name(user_module, needs, said):
    path = f"{user_module}:plain"
    plain = advantages.estimator(path)
    plain.needs = needs
    with pytest.raises(ConfigError, match=f"^algorithm.adv_estimator={path}: {said}"):
        advantages.needs_of(path)
    advantages.register_adv_est("mine", needs=needs)(plain)
    for name in ("mine", path):
        with pytest.raises(ConfigError, match=f"^algorithm.adv_estimator={name}: {said}"):
            advantages.needs_of(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_estimators:nothing", "my_estimators has no such name; it defines centred, plain, two_arguments"),
        ("no_such_module:fn", "no such file, and no module of that name"),
        ("my_estimators:two_arguments", "must be a function of one argument, the inputs"),
        ("my_estimators:not_a_function", "in my_estimators it is of type int and cannot be called"),
        ("my_estimators.py", "no such name"),
    ],
)
def test_a_wrong_import_path_is_explained(user_module, name, message):
    with pytest.raises(ConfigError, match=f"^algorithm.adv_estimator={name}.*{message}"):
        advantages.needs_of(name)


def test_an_unknown_name_is_answered_with_the_nearest_and_the_known():
    words = r"algorithm.adv_estimator=grop: no such name; did you mean 'grpo'\? There are gae, "
    with pytest.raises(ConfigError, match=words) as e:
        advantages.estimator("grop")
    assert "my.module:function" in str(e.value) and all(name in str(e.value) for name in advantages.TABLE.entries)
    with pytest.raises(ConfigError, match=r"loss_mode=xyzzy: no such name. There are cispo, clip_cov, .*, vanilla;"):
        losses.needs_of("xyzzy")


def test_a_taken_name_is_refused_and_a_reloaded_module_is_not():
    table = AlgorithmTable(key="some.key", entries={"taken": Entry("burnish.x:taken")})

    def mine(inputs):
        return inputs

    with pytest.raises(ConfigError, match=r"some.key: the name 'taken' belongs to burnish.x:taken; choose another"):
        table.register("taken")(mine)
    assert table.register("mine")(mine) is mine
    assert table.register("mine")(mine) is mine


@pytest.mark.parametrize(
    ("table", "name", "hint"),
    [
        (advantages.TABLE, "dapo", "DAPO is grpo with further keys, --config-name=recipes/dapo"),
        (advantages.TABLE, "gspo", "it is a policy loss: actor_rollout_ref.actor.policy_loss.loss_mode=gspo"),
        (advantages.TABLE, "Dr_GRPO", "Dr.GRPO is grpo with algorithm.norm_adv_by_std_in_grpo=false"),
        (advantages.TABLE, "GRPO", "did you mean 'grpo'?"),
        (losses.TABLE, "gmpo", "GMPO's loss is geo_mean"),
        (losses.TABLE, "grpo", "it is an estimator: algorithm.adv_estimator=grpo"),
    ],
)
def test_a_name_that_is_something_else_here_is_sent_there(table, name, hint):
    with pytest.raises(ConfigError) as error:
        table.needs_of(name)
    assert f"{table.key}={name}: no such name" in str(error.value) and hint in str(error.value)


def test_names_that_are_sent_elsewhere_exist_there():
    for table, other in ((advantages.TABLE, losses.TABLE), (losses.TABLE, advantages.TABLE)):
        named = [hint.partition(f"{other.key}=")[2] for hint in table.elsewhere.values() if f"{other.key}=" in hint]
        assert named and set(named) <= set(other.entries) and not set(table.elsewhere) & set(table.entries)
