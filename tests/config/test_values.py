"""Keys: types, choices and ranges, and the tree: light to import, every key documented and read where it says."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import burnish
from burnish.config import EvalConfig, GenerationConfig, PPOConfig, RMConfig, SFTConfig
from burnish.config.key import keys_of
from burnish.config.values import convert
from tests.config.conftest import refused

KEYS = keys_of(PPOConfig)
ROLLOUT = "actor_rollout_ref.rollout"


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("trainer.total_epochs", 3, 3),
        ("trainer.total_epochs", "3", 3),
        ("trainer.total_epochs", 1e2, 100),
        ("actor_rollout_ref.actor.optim.lr", 1, 1.0),
        ("actor_rollout_ref.actor.optim.lr", "1e-6", 1e-6),
        ("data.shuffle", "False", False),
        ("data.shuffle", 1, True),
        ("trainer.experiment_name", 7, "7"),
        ("data.train_files", "a.parquet", ["a.parquet"]),
        ("data.train_files", ["a.parquet", "b.json"], ["a.parquet", "b.json"]),
        (f"{ROLLOUT}.stop", None, []),
        ("actor_rollout_ref.model.override_config", None, {}),
        ("data.val_batch_size", None, None),
        (f"{ROLLOUT}.n", None, None),
        ("actor_rollout_ref.model.dtype", "bf16", "bfloat16"),
        ("trainer.device", "gpu", "cuda"),
        ("trainer.n_gpus_per_node", 1, 1),
        ("trainer.n_gpus_per_node", "auto", "auto"),
        ("actor_rollout_ref.model.use_fused_kernels", "auto", "auto"),
        ("actor_rollout_ref.model.use_fused_kernels", False, False),
        ("actor_rollout_ref.actor.kl_loss_type", "low_var_kl+", "low_var_kl+"),
        ("algorithm.adv_estimator", "my.package:estimate", "my.package:estimate"),
        ("reward_model.reward_manager", "managers/mine.py:Manager", "managers/mine.py:Manager"),
        ("actor_rollout_ref.actor.policy_loss.clip_cov_ratio", 1, 1.0),
        ("actor_rollout_ref.actor.policy_loss.kl_cov_ratio", 1, 1.0),
    ],
)
def test_convert_accepts_valid_values(name, raw, value):
    converted = convert(KEYS[name], raw)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("trainer.total_epochs", "three", "trainer.total_epochs=three: must be an integer of at least 1"),
        ("trainer.total_epochs", 2.5, "trainer.total_epochs=2.5: must be an integer"),
        ("trainer.total_epochs", True, "trainer.total_epochs=true: must be an integer"),
        ("trainer.total_epochs", None, "epochs=null: must be an integer of at least 1; leave it out for 1"),
        ("data.shuffle", "maybe", "data.shuffle=maybe: must be true or false"),
        ("data.prompt_key", {"a": 1}, "data.prompt_key={a:1}: must be a string"),
        ("data.dataset_weights", ["a"], "data.dataset_weights=[a]: must be a number or a list of them"),
        ("data.truncation", "cut", "data.truncation=cut: must be one of error, left, right, middle"),
        ("trainer.n_gpus_per_node", "all", "trainer.n_gpus_per_node=all: must be one of auto, an integer"),
        ("trainer.n_gpus_per_node", 0, "n_gpus_per_node=0: must be one of auto, an integer of at least 1"),
        (f"{ROLLOUT}.top_p", 1.5, "top_p=1.5: must be a number of more than 0 and at most 1"),
        (f"{ROLLOUT}.top_p", 0, "top_p=0.0: must be a number of more than 0"),
        ("algorithm.gamma", float("nan"), "algorithm.gamma=nan: must be a number of at least 0"),
        ("algorithm.kl_penalty", "full", "it needs the whole vocabulary for every token; use low_var_kl"),
        ("actor_rollout_ref.actor.kl_loss_type", "full", "use low_var_kl"),
        ("algorithm.kl_penalty", "k3+", "algorithm.kl_penalty=k3+: must be one of kl, k1"),
    ],
)
def test_convert_refuses_invalid_values(name, raw, message):
    refused(re.escape(message), convert, KEYS[name], raw)


MULTI_TURN, LOSS = f"{ROLLOUT}.multi_turn", "actor_rollout_ref.actor.policy_loss"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("data.max_start_length=0", "at least 1"),
        ("data.max_obs_length=0", "at least 1"),
        ("max_turns=-1", "at least 0"),
        ("data.max_prompt_length=0", "at least 1"),
        ("retriever.topk=0", "at least 1"),
        ("retriever.topk=101", "at most 100"),
        ("retriever.timeout=0", "more than 0"),
        ("retriever.retries=-1", "at least 0"),
        (f"{MULTI_TURN}.max_parallel_calls=0", "at least 1"),
        (f"{MULTI_TURN}.tool_timeout=0", "more than 0"),
        (f"{MULTI_TURN}.max_tool_calls=-1", "at least 0"),
        (f"{MULTI_TURN}.rewards=turns", "one of trajectory, turn, both"),
        (f"{MULTI_TURN}.format=hermess", "one of hermes, "),
        (f"{MULTI_TURN}.tool_response_truncate_side=centre", "one of left, middle, right"),
        ("process_reward.beta=0", "more than 0"),
        ("process_reward.update=during", "one of before, after"),
        ("process_reward.mini_batch_size=0", "at least 1"),
        ("process_reward.grad_clip=0", "more than 0"),
        (f"{LOSS}.clip_cov_ratio=0", "more than 0"),
        (f"{LOSS}.clip_cov_ratio=1.1", "at most 1"),
        (f"{LOSS}.kl_cov_ratio=0", "more than 0"),
        (f"{LOSS}.kl_cov_ratio=1.1", "at most 1"),
        ("actor_rollout_ref.actor.fsdp_config.fsdp_size=-2", "at least -1"),
        ("actor_rollout_ref.model.lora_rank=-1", "at least 0"),
        ("trainer.async_rollout.staleness=-1", "at least 0"),
    ],
)
def test_each_key_has_its_own_limits(given, words):
    name, _, raw = given.partition("=")
    refused(rf"^{re.escape(given)}\S*: must be .*{words}", convert, KEYS[name], raw)


def test_importing_the_configuration_is_light():
    program = (
        "import sys, burnish.config; print([m for m in ('torch', 'hydra', 'omegaconf', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize("root", [PPOConfig, SFTConfig, RMConfig, GenerationConfig, EvalConfig])
def test_every_key_is_documented_its_default_allowed_and_it_is_read_by_the_file_it_names_or_has_a_reason(root):
    for known in keys_of(root).values():
        about = known.about
        assert about.doc and not about.doc.endswith("."), known.name
        assert known.default is None or convert(known, known.default) == known.default, known.name
        if about.reader:  # a key that nobody reads is a key that is silently ignored
            file = Path(burnish.__file__).parent / about.reader
            is_read = file.is_file() and known.name.rpartition(".")[2] in names_read(file)
            assert is_read, f"{known.name}: not in burnish/{about.reader}"
        else:
            has_reason = isinstance(about.later, str) or about.inert is not None
            assert has_reason, f"{known.name}: no reader, and neither later nor inert"


@cache
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


def test_two_configurations_share_nothing_and_sections_may_have_other_defaults():
    keys = keys_of(PPOConfig)
    assert keys["actor_rollout_ref.actor.optim.lr"].default == 1e-6
    assert keys["critic.optim.lr"].default == 1e-5
    first, second = PPOConfig(), PPOConfig()
    first.trainer.logger.append("tensorboard")
    first.data.apply_chat_template_kwargs["a"] = 1
    assert second.trainer.logger == ["console"]
    assert second.data.apply_chat_template_kwargs == {}
