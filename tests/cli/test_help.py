"""`burnish ppo --help`: the keys with default and meaning, a filter, and a hint for a word that fits nothing."""

import pytest

from burnish.algorithms import advantages, losses
from burnish.algorithms.needs import needs_of
from burnish.cli.main import main
from burnish.config.finalise import finalise, finalise_eval, finalise_generation, finalise_rm, finalise_sft
from burnish.config.key import keys_of
from burnish.config.load import EVAL, GENERATION, load, load_ppo, load_rm, load_sft
from burnish.config.ppo import PPOConfig
from burnish.config.supervised import RMConfig, SFTConfig
from burnish.entry.keys import KEY_COMMANDS


@pytest.mark.parametrize(("command", "root"), [("ppo", PPOConfig), ("sft", SFTConfig), ("rm", RMConfig)])
def test_every_key_is_listed_with_its_meaning_and_those_not_available_yet_on_request(command, root, capsys):
    assert main([command, "--help", "all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    known = keys_of(root)
    for name, key in known.items():
        assert f" {name} [" in text, name
        assert " ".join(key.about.doc.split()) in text, name
    assert "not shown" not in text and "Config(" not in text
    main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    later = {name for name, key in known.items() if isinstance(key.about.later, str) and not key.about.now}
    assert later and {name for name in known if f" {name} [" not in text} == later
    assert f"not shown: {len(later)} not available yet; `burnish {command} --help all` shows all" in text


@pytest.mark.parametrize(
    ("command", "loader", "finish"),
    [
        ("ppo", load_ppo, lambda config, explicit: finalise(config, explicit, needs_of(config))),
        ("sft", load_sft, finalise_sft),
        ("rm", load_rm, finalise_rm),
        ("generate", lambda words: load(words, GENERATION)[0], finalise_generation),
        ("eval", lambda words: load(words, EVAL)[0], finalise_eval),
    ],
)
def test_an_example_that_works_comes_first(command, loader, finish, capsys):
    main([command, "--help"])
    text = capsys.readouterr().out
    shown = text.partition("example:")[2].partition("usage:")[0]
    assert text.index("example:") < text.index("usage:")
    words = shown.replace("\\\n", " ").split()
    assert words == ["burnish", command, *KEY_COMMANDS[command].example]
    loaded = loader(words[2:])
    finish(loaded.config, loaded.explicit)


@pytest.mark.parametrize("command", KEY_COMMANDS)
def test_a_flag_of_some_commands_is_in_their_help_alone(command, capsys):
    main([command, "--help"])
    flags = capsys.readouterr().out.partition("flags:\n")[2].partition("\n\n")[0]
    own = KEY_COMMANDS[command].flag
    listed = [*(line.split()[0] for line in own.splitlines()), "--config-name", "--cfg", "--multirun", "--debug"]
    assert [line.split()[0] for line in flags.splitlines()] == listed
    assert own.startswith("--plan") is (command in ("ppo", "sft", "rm"))


@pytest.mark.parametrize("table", [advantages.TABLE, losses.TABLE])
def test_keys_that_name_an_algorithm_list_those_there_are(table, capsys):
    main(["ppo", "--help", table.key])
    text = " ".join(capsys.readouterr().out.split())
    assert f"{table.key} [" in text and "built in: " + ", ".join(table.entries) in text


def test_defaults_are_shown_as_they_are_typed_and_unavailable_keys_are_marked(capsys):
    main(["ppo", "--help"])
    text = capsys.readouterr().out
    for shown in ("data.max_prompt_length [512]", "data.shuffle [true]", "data.val_files [null]"):
        assert shown in text
    main(["ppo", "--help", "data.image_key"])
    assert "not available yet" in capsys.readouterr().out


def test_a_word_selects_a_part_without_the_keys_that_are_not_available(capsys):
    main(["ppo", "--help", "optim.lr"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "optim.lr [" in line]
    assert listed == ["actor_rollout_ref.actor.optim.lr", "critic.optim.lr", "process_reward.optim.lr"]
    main(["ppo", "--help", "rollout"])
    text = capsys.readouterr().out
    assert "actor_rollout_ref.rollout.temperature [" in text and "actor_rollout_ref.actor.clip_ratio [" not in text
    main(["ppo", "clip_rat", "--help"])
    assert "actor_rollout_ref.actor.clip_ratio_high [" in capsys.readouterr().out
    main(["ppo", "--help", "model"])
    text = capsys.readouterr().out
    count = int(text.partition("not shown: ")[2].split()[0])
    main(["ppo", "--help", "model", "all"])
    everything = capsys.readouterr().out
    assert "`burnish ppo --help model all` shows all" in text
    assert count > 0 and everything.count(" [") == text.count(" [") + count


@pytest.mark.parametrize(
    ("word", "hint"),
    [("temprature", "Did you mean temperature?"), ("xyzzy", "Without a word, --help lists the keys")],
)
def test_a_word_that_fits_nothing_gets_a_hint_but_no_wild_guess(word, hint, capsys):
    assert main(["ppo", "--help", word]) == 2
    assert f"no key with {word} in its name. {hint}" in capsys.readouterr().err
