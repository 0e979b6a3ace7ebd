"""`burnish ppo --help`: every key with default and meaning, a filter, and a hint for a word that fits nothing."""

import pytest

from burnish.cli.main import main
from burnish.config.key import keys_of
from burnish.config.ppo import PPOConfig
from burnish.config.sft import SFTConfig


@pytest.mark.parametrize(("command", "root"), [("ppo", PPOConfig), ("sft", SFTConfig)])
def test_every_key_is_listed_with_its_meaning(command, root, capsys):
    assert main([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, known in keys_of(root).items():
        assert f" {name} [" in text, name
        assert " ".join(known.about.doc.split()) in text, name


def test_defaults_are_shown_as_they_are_typed(capsys):
    main(["ppo", "--help"])
    text = capsys.readouterr().out
    assert "data.max_prompt_length [512]" in text
    assert "data.shuffle [true]" in text
    assert "data.val_files [null]" in text


def test_a_word_selects_a_part(capsys):
    main(["ppo", "--help", "optim.lr"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "optim.lr [" in line]
    assert listed == ["actor_rollout_ref.actor.optim.lr", "critic.optim.lr"]
    main(["ppo", "--help", "rollout"])
    text = capsys.readouterr().out
    assert "actor_rollout_ref.rollout.temperature [" in text and "actor_rollout_ref.actor.clip_ratio [" not in text
    main(["ppo", "clip_rat", "--help"])
    assert "actor_rollout_ref.actor.clip_ratio_high [" in capsys.readouterr().out


def test_a_word_that_fits_nothing_gets_a_hint(capsys):
    assert main(["ppo", "--help", "temprature"]) == 2
    assert "no key with temprature in its name. Did you mean temperature?" in capsys.readouterr().err


def test_what_cannot_be_used_is_marked(capsys):
    main(["ppo", "--help", "trainer.nnodes"])
    assert "not available yet" in capsys.readouterr().out
