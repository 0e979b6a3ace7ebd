"""The tree itself: light to import, every key documented, read where it says, and at home in config.md's sections."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import burnish
from burnish.config import EvalConfig, GenerationConfig, PPOConfig, RMConfig, SFTConfig
from burnish.config.key import KnownKey, keys_of
from burnish.config.values import convert

PACKAGE = Path(burnish.__file__).parent
ROOTS = (PPOConfig, SFTConfig, RMConfig, GenerationConfig, EvalConfig)


def test_importing_the_configuration_is_light():
    program = (
        "import sys, burnish.config; print([m for m in ('torch', 'hydra', 'omegaconf', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("root", ROOTS)
def test_every_key_is_documented_and_has_a_reader_or_a_reason(root):
    for known in keys_of(root).values():
        about = known.about
        assert about.doc and not about.doc.endswith("."), known.name
        has_reason = isinstance(about.later, str) or about.inert is not None
        assert about.reader or has_reason, f"{known.name}: no reader, and neither later nor inert"


@pytest.mark.parametrize("root", ROOTS)
def test_every_default_is_allowed(root):
    for known in keys_of(root).values():
        if known.default is not None:
            assert convert(known, known.default) == known.default, known.name


@pytest.mark.parametrize("root", ROOTS)
def test_every_key_is_read_by_the_file_it_names(root):
    """A key that nobody reads is a key that is silently ignored."""
    unread = [f"{k.name}: not in burnish/{k.about.reader}" for k in keys_of(root).values() if not is_read(k)]
    assert not unread, f"{len(unread)} keys are not read:\n" + "\n".join(unread)


def is_read(known: KnownKey) -> bool:
    file = PACKAGE / known.about.reader
    return not known.about.reader or (file.is_file() and known.name.rpartition(".")[2] in names_read(file))


def names_read(file: Path) -> set[str]:
    """Attributes that a file reads, and strings that it may hand to getattr."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            names.add(node.value)
    return names


def test_an_unread_key_is_noticed(tmp_path):
    file = tmp_path / "reader.py"
    file.write_text("def f(config):\n    config.written = 1\n    return config.data.seed, getattr(config, 'named')\n")
    assert names_read(file) == {"data", "seed", "named"}


def test_defaults_of_a_shared_section_can_differ():
    keys = keys_of(PPOConfig)
    assert keys["actor_rollout_ref.actor.optim.lr"].default == 1e-6
    assert keys["critic.optim.lr"].default == 1e-5


def test_two_configurations_share_nothing():
    first, second = PPOConfig(), PPOConfig()
    first.trainer.logger.append("tensorboard")
    first.data.apply_chat_template_kwargs["a"] = 1
    assert second.trainer.logger == ["console"]
    assert second.data.apply_chat_template_kwargs == {}
