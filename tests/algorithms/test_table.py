"""The tables of estimators and losses: names, import paths, a user's own, and what is said about a wrong one."""

import subprocess
import sys

import pytest
import torch

from burnish.algorithms import advantages, losses
from burnish.algorithms.advantages.grpo import grpo
from burnish.algorithms.losses.vanilla import vanilla
from burnish.algorithms.table import Entry, Table
from burnish.config import Needs
from burnish.config.key import keys_of
from burnish.config.ppo import PPOConfig
from burnish.errors import ConfigError

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
    """An importable `my_estimators.py`; the table is as before afterwards."""
    (tmp_path / "my_estimators.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(advantages.TABLE, "entries", dict(advantages.TABLE.entries))
    yield "my_estimators"
    sys.modules.pop("my_estimators", None)


def test_built_in_names():
    assert advantages.needs_of("gae") == Needs(critic=True)
    assert advantages.needs_of("grpo") == Needs(groups=True)
    assert losses.needs_of("vanilla") == Needs(ratio=True, skips_zero_advantage=True)
    assert advantages.estimator("grpo") is grpo
    assert losses.policy_loss("vanilla") is vanilla


@pytest.mark.parametrize("table", [advantages.TABLE, losses.TABLE], ids=lambda table: table.key)
def test_every_entry_can_be_loaded_and_the_key_exists(table):
    assert all(callable(table.load(name)) for name in table.entries)
    assert keys_of(PPOConfig)[table.key].default in table.entries


def test_an_import_path_needs_no_registration(user_module, make_advantage_inputs):
    inputs = make_advantage_inputs([[1.0, 0.0], [0.0, 0.0]], torch.ones(2, 2), ["a", "a"])
    assert advantages.estimator(f"{user_module}:plain")(inputs)[0].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert advantages.needs_of(f"{user_module}:plain") == Needs()


def test_a_function_in_a_file(tmp_path, make_advantage_inputs):
    (tmp_path / "in_a_file.py").write_text("def zero(inputs):\n    return inputs.on_tokens(0 * inputs.scores), None\n")
    inputs = make_advantage_inputs([[1.0]], torch.ones(1, 1))
    assert advantages.estimator(f"{tmp_path}/in_a_file.py:zero")(inputs)[0].tolist() == [[0.0]]


def test_a_registered_function_has_its_needs_by_name_and_by_path(user_module, make_advantage_inputs):
    assert advantages.needs_of(f"{user_module}:centred") == Needs(groups=True)
    assert advantages.needs_of("centred") == Needs(groups=True)
    inputs = make_advantage_inputs([[1.0, 0.0], [0.0, 0.0]], torch.ones(2, 2), ["a", "a"])
    assert advantages.estimator("centred")(inputs)[0].tolist() == [[0.5, 0.5], [-0.5, -0.5]]


def test_a_registered_loss(policy_batch, monkeypatch):
    monkeypatch.setattr(losses.TABLE, "entries", dict(losses.TABLE.entries))

    @losses.register_policy_loss("plain")
    def plain(inputs):
        return inputs.aggregate(-inputs.advantages * inputs.log_prob), {}

    assert losses.policy_loss("plain") is plain
    assert plain(policy_batch())[0].isfinite()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_estimators:nothing", "my_estimators has no such name; it defines centred, plain, two_arguments"),
        ("no_such_module:fn", "no such file, and no module of that name"),
        ("my_estimators:two_arguments", "must be a function of one argument, the inputs"),
        ("my_estimators:not_a_function", "in my_estimators it is of type int and cannot be called"),
        ("my_estimators.py", "is unknown"),
    ],
)
def test_a_wrong_import_path_is_explained(user_module, name, message):
    with pytest.raises(ConfigError, match=f"^algorithm.adv_estimator={name}.*{message}"):
        advantages.needs_of(name)


def test_an_unknown_name_is_answered_with_the_nearest_and_the_known():
    with pytest.raises(
        ConfigError, match=r"algorithm.adv_estimator=grop is unknown: did you mean 'grpo'\? There is gae, "
    ) as e:
        advantages.estimator("grop")
    assert "my.module:function" in str(e.value) and all(name in str(e.value) for name in advantages.TABLE.entries)
    with pytest.raises(ConfigError, match=r"loss_mode=xyzzy is unknown: There is cispo, clip_cov, .*, vanilla;"):
        losses.needs_of("xyzzy")


def test_a_taken_name_is_refused_and_a_reloaded_module_is_not():
    table = Table(key="some.key", entries={"taken": Entry("burnish.x:taken")})

    def mine(inputs):
        return inputs

    with pytest.raises(ConfigError, match=r"some.key: the name 'taken' belongs to burnish.x:taken; choose another"):
        table.register("taken")(mine)
    assert table.register("mine")(mine) is mine
    assert table.register("mine")(mine) is mine


def test_the_tables_are_read_without_torch():
    program = (
        "import sys; from burnish.algorithms import advantages, losses; "
        "advantages.needs_of('gae'); losses.needs_of('vanilla'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
