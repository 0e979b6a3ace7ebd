"""docs/from-verl.md: what it lists is what there is, and its defaults are those of burnish/config."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import verl
import yaml
from verl._coverage import NOT_COVERED

from burnish.config import PPOConfig, load_ppo, load_sft
from burnish.config.aliases import ALIASES
from burnish.config.key import keys_of
from burnish.config.values import convert, show

PAGE = (Path(__file__).parents[2] / "docs/from-verl.md").read_text()
KNOWN = keys_of(PPOConfig)
MODULES = sorted(one.name for one in pkgutil.walk_packages(verl.__path__, "verl.") if "._" not in one.name)


def defaults() -> Iterator[tuple[str, Any]]:
    for line in (Path(__file__).parent / "verl_defaults.txt").read_text().splitlines()[1:]:
        section, _, keys = line.partition(":")
        for key, _, value in (word.partition("=") for word in keys.split()):
            number = re.fullmatch(r"[\d.]+e-\d+", value)  # YAML takes 1e-06 for text
            yield f"{section}.{key}", float(value) if number else yaml.safe_load(value)


def table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without backticks."""
    _, _, below = PAGE.partition(f"\n## {heading}\n")
    rows = [line for line in below.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[1:]]


def test_every_default_of_verl_can_be_set():
    models = ("rollout.name", "tensor_model_parallel_size")  # of an engine that need not be installed
    loaded = load_ppo([f"+{key}={show(value)}" for key, value in defaults() if not key.endswith(models)])
    assert loaded.config.actor_rollout_ref.actor.policy_loss.tau_neg == 1.05
    assert loaded.config.data.seed == 1


def test_sft_reads_a_column_inside_a_column():
    keys = ["prompt_key=extra_info", "prompt_dict_keys=['question']", "response_key=answer", "response_dict_keys=[]"]
    loaded = load_sft([f"+data.{key}" for key in keys] + ["+use_remove_padding=true"])
    data = loaded.config.data
    assert (data.prompt_key, data.response_key) == ("extra_info.question", "answer")


def test_sft_takes_the_defaults_of_verls_sections():
    keys = """model.fsdp_config.model_dtype=fp32 model.fsdp_config.cpu_offload=false model.strategy=fsdp2
        model.fsdp_config.offload_params=false model.fsdp_config.wrap_policy.min_num_params=0 optim.clip_grad=1.0
        data.multiturn.enable=false data.multiturn.messages_key=messages data.multiturn.tools_key=tools
        data.multiturn.enable_thinking_key=enable_thinking
        data.balance_dp_token=false data.chat_template=null ulysses_sequence_parallel_size=1 optim.lr_scheduler=cosine
        optim.lr_warmup_steps_ratio=0.1 trainer.checkpoint.save_contents=[model,optimizer,extra]
        trainer.checkpoint.load_contents=[model,optimizer,extra] trainer.default_hdfs_dir=null trainer.resume_path=null
        data.custom_cls.path=null data.custom_cls.name=null data.seed=null data.use_dynamic_bsz=true data.num_workers=8
        data.max_token_len_per_gpu=8192 data.tools_key=tools data.enable_thinking_key=enable_thinking
        data.enable_thinking_default=null data.pad_mode=no_padding data.ignore_input_ids_mismatch=false
        data.use_shm=false model.hf_config_path=null model.custom_chat_template=null model.tiled_mlp.num_shards=4
        model.fused_kernel_options.impl_backend=torch optim.total_training_steps=-1 optim.num_cycles=0.5
        optim.optimizer_impl=torch.optim optim.override_optimizer_config=null optim.zero_indexed_step=true
        optim.warmup_style=null checkpoint.save_contents=[model,optimizer,extra]
        checkpoint.load_contents=[model,optimizer,extra] checkpoint.async_save=false"""
    engine = """strategy=fsdp2 model_dtype=fp32 dtype=bfloat16 fsdp_size=-1 seed=42 reshard_after_forward=true
        use_torch_compile=true ulysses_sequence_parallel_size=1 param_offload=false wrap_policy.min_num_params=0"""
    loaded = load_sft(keys.split() + [f"engine.{key}" for key in engine.split()])
    assert load_sft(["engine=fsdp"]).config.data.seed == loaded.config.data.seed
    assert loaded.config.optim.lr_scheduler_type == "cosine"
    assert any("no effect" in notice and "model.strategy" in notice for notice in loaded.notices)


def test_the_table_of_defaults_has_all_that_differ():
    differ = {}
    for key, value in defaults():
        target = ALIASES.get(key, key) if isinstance(ALIASES.get(key, key), str) else key
        if target in KNOWN and target not in differ:
            own = KNOWN[target].default
            same = value == own or (value is not None and convert(KNOWN[target], value) == own)
            if not same:
                differ[target] = [show(value), show(own)]
    assert {key: [theirs, ours] for key, theirs, ours, _ in table("Defaults that differ")} == differ


def test_all_modules_are_listed_and_no_others():
    listed = [name for names, *_ in table("What is there") for name in names.split(", ")]
    for name in listed:
        importlib.import_module(name)
    around = {name for one in listed for name in (one, *(one.rsplit(".", count)[0] for count in (1, 2)))}
    unlisted = [module for module in MODULES if not any(f"{module}.".startswith(f"{name}.") for name in listed)]
    assert set(unlisted) <= around


def test_what_is_not_covered_is_listed_and_is_not_there():
    assert dict(table("What is not there")) == {k: v.replace("`", "") for k, v in NOT_COVERED.items()}
    for name in set(NOT_COVERED) - set(MODULES):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
