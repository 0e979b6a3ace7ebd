"""`rollout.name=sglang` is checked before anything is loaded."""

import pytest

from burnish.config.rules import program
from burnish.config.rules.cluster import devices
from burnish.errors import ConfigError, NotAvailable

ROLLOUT = "actor_rollout_ref.rollout"


@pytest.fixture
def is_there(monkeypatch):
    """`is_there(False)`: as if SGLang were not installed."""

    def pretend(there):
        monkeypatch.setattr(program, "find_spec", lambda name: name if there else None)
        monkeypatch.setattr(program, "version", lambda name: "0.5.23")

    return pretend


def test_without_the_package_it_is_refused_with_what_to_do_instead(finish, is_there):
    is_there(False)
    with pytest.raises(ConfigError) as error:
        finish({f"{ROLLOUT}.name": "sglang"})
    for part in ("needs the package sglang", "docs/sglang.md", f"{ROLLOUT}.name=native"):
        assert part in str(error.value)


def test_with_the_package_it_is_taken(finish, is_there):
    is_there(True)
    config, notices = finish({f"{ROLLOUT}.name": "sglang", f"{ROLLOUT}.engine_kwargs.sglang.random_seed": 16})
    assert config.actor_rollout_ref.rollout.engine_kwargs.sglang == {"random_seed": 16}
    assert notices == []


def test_keys_that_it_does_not_read_are_reported(finish, is_there):
    is_there(True)
    names = ("free_cache_engine", "enforce_eager", "gpu_memory_utilization")
    keys = {f"{ROLLOUT}.{name}": value for name, value in zip(names, (False, True, 0.3), strict=True)}
    assert finish({f"{ROLLOUT}.name": "sglang", **keys})[1] == [
        f"no effect: {ROLLOUT}.free_cache_engine (SGLang gives no memory back)",
        f"no effect: {ROLLOUT}.enforce_eager (SGLang uses no CUDA graphs)",
    ]


def test_several_devices_were_never_run(finish, is_there):
    is_there(True)
    with pytest.raises(NotAvailable, match="a rollout engine over several devices"):
        finish({f"{ROLLOUT}.name": "sglang", f"{ROLLOUT}.tensor_model_parallel_size": 2})


@pytest.mark.parametrize("name", ["native", "hf"])
def test_its_arguments_are_reported_under_another_engine(finish, name):
    _, notices = finish({f"{ROLLOUT}.name": name, f"{ROLLOUT}.engine_kwargs.sglang.page_size": 16})
    assert notices == [f"unused: {ROLLOUT}.engine_kwargs.sglang ({ROLLOUT}.name={name})"]


@pytest.mark.parametrize(
    "name", ["attention_backend", "quantization", "speculative_algorithm", "dp_size", "enable_lora"]
)
def test_arguments_that_it_was_never_run_with_are_refused(finish, is_there, name):
    is_there(True)
    with pytest.raises(ConfigError, match=rf"engine_kwargs\.sglang\.{name}: "):
        finish({f"{ROLLOUT}.name": "sglang", f"{ROLLOUT}.engine_kwargs.sglang": {name: 2}})


def test_a_gpu_is_refused_before_anything_is_loaded(finish, is_there):
    is_there(True)
    config, _ = finish({f"{ROLLOUT}.name": "sglang"})
    devices(config, frozenset(), 0)
    with pytest.raises(
        NotAvailable, match=rf"on a GPU \({ROLLOUT}\.name=sglang\).*docs/sglang.md.*name=vllm or .*name=native"
    ):
        devices(config, frozenset(), 1)
