"""Which roles are profiled, with which tool, and what verl's profiler sections become."""

import pytest
import yaml

from burnish.config import Needs
from burnish.config.key import read
from burnish.config.profiler import PROFILED
from tests.config.conftest import nested, refused, told

STEPS = "global_profiler.steps"
ACTOR, ROLLOUT, WORKER, CRITIC = (
    f"{name}.profiler"
    for name in ("actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref", "critic")
)
ONE_ROLE = """
tool: ${oc.select:global_profiler.tool,null}
enable: false
all_ranks: false
ranks: []
save_path: ${oc.select:global_profiler.save_path,null}
tool_config:
  npu: {contents: [], level: level0, analysis: true, discrete: false, name: npu}
  nsys: {discrete: "${oc.select:global_profiler.global_tool_config.nsys.discrete}", name: nsight}
  torch: {step_start: 0, step_end: null, contents: [], discrete: false, manual_save: true, name: torch}
  torch_memory:
    trace_alloc_max_entries: "${oc.select:global_profiler.global_tool_config.torch_memory.trace_alloc_max_entries,1000}"
    stack_depth: 32
    name: torch_memory
"""
OF_THE_RUN = """
tool: null
steps: null
profile_continuous_steps: false
save_path: outputs/profile
global_tool_config:
  nsys:
    discrete: false
    controller_nsight_options: {trace: "cuda,nvtx,cublas,ucx", cuda-memory-usage: "true"}
    worker_nsight_options: {trace: "cuda,nvtx", capture-range: cudaProfilerApi, capture-range-end: null, kill: none}
  torch_memory: {trace_alloc_max_entries: 5000, stack_depth: 32, context: all, stacks: all, kw_args: {}}
"""


def profiled(config) -> set[str]:
    return {name for name in PROFILED if read(config, f"{name}.profiler").enable}


@pytest.mark.parametrize(
    ("keys", "roles"),
    [
        ({}, {"actor_rollout_ref", "critic"}),
        ({f"{CRITIC}.enable": False}, {"actor_rollout_ref"}),
        ({f"{ACTOR}.enable": True}, {"actor_rollout_ref.actor"}),
        ({f"{ACTOR}.ranks": [0]}, {"actor_rollout_ref.actor"}),
        ({f"{WORKER}.all_ranks": True, f"{CRITIC}.ranks": None}, {"actor_rollout_ref"}),
        ({f"{CRITIC}.enable": True, f"{ACTOR}.ranks": [0]}, {"critic"}),
        ({"trainer.executor": "processes", "global_profiler.tool": "nsys"}, {"actor_rollout_ref", "critic"}),
    ],
)
def test_roles_are_those_enabled_or_with_ranks_or_all(finish, keys, roles):
    config, _ = finish({STEPS: [2], **keys}, Needs(critic=True))
    assert profiled(config) == roles
    assert profiled(finish(keys, Needs(critic=True))[0]) == set()  # no step


def test_the_sections_of_verl_are_read(finish):
    roles = {f"{name}.profiler": yaml.safe_load(ONE_ROLE) for name in PROFILED[1:]}
    config, notices = finish(roles | {"global_profiler": yaml.safe_load(OF_THE_RUN), "trainer.profile_steps": None})
    assert profiled(config) == set() and told(notices, "no effect", "worker_nsight_options", "(no step is profiled)")
    chosen = nested({"steps": [1], "tool": "torch_memory"})
    overall = yaml.safe_load(OF_THE_RUN) | chosen
    one = yaml.safe_load(ONE_ROLE) | {"enable": True, "all_ranks": True}
    config, notices = finish(roles | {"global_profiler": overall, ACTOR: one})
    section = config.actor_rollout_ref.actor.profiler
    assert profiled(config) == {"actor_rollout_ref.actor"} and section.covers(7)
    assert (section.tool, section.save_path, section.discrete) == ("torch_memory", "outputs/profile", False)
    assert section.tool_config.torch_memory.trace_alloc_max_entries == 5000
    assert config.worker_nsight_options["trace"] == "cuda,nvtx"
    assert told(notices, "no effect", "worker_nsight_options (the tool is not nsys)")


def test_options_of_nsys_choose_it_and_other_steps_torch(finish):
    old = {
        "trainer.profile_steps": [1, 5],
        "trainer.worker_nsight_options": {"trace": "cuda"},
        f"{WORKER}.discrete": True,
    }
    config, notices = finish(old)
    assert config.global_profiler.steps == [1, 5] and config.actor_rollout_ref.profiler.tool == "nsys"
    assert config.actor_rollout_ref.profiler.discrete
    assert told(notices, "global_profiler.tool=nsys, because worker_nsight_options is set")
    config, notices = finish({STEPS: [1]})
    section = config.actor_rollout_ref.profiler
    assert section.tool == "torch"
    assert section.covers(0) and not section.covers(1)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"actor_rollout_ref.rollout.name": "vllm"}, "vLLM generates in its own processes"),
        ({"trainer.executor": "ray", f"{ROLLOUT}.discrete": True}, "use discrete=false"),
    ],
)
def test_generation_that_no_profile_shows_is_reported(finish, monkeypatch, keys, words):
    monkeypatch.setattr("burnish.rollout.hosted.spec.HostedSpec.check_installed", lambda *words: None)
    _, notices = finish({STEPS: [1], f"{ROLLOUT}.enable": True, **keys})
    assert told(notices, "no effect: actor_rollout_ref.rollout.profiler.enable", words)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"global_profiler.tool": "torch_mem"}, "one of torch, torch_memory, nsys; did you mean torch_memory"),
        ({f"{ACTOR}.tool_config.torch.contents": ["stacks"]}, "one of cpu, .*did you mean stack"),
        ({f"{ACTOR}.tool_config.torch.step_start": 3}, "step_start' is not supported: a profile has a whole step"),
        ({STEPS: [0]}, r"steps=\[0\]: the first step of a run is 1"),
        ({STEPS: [1], f"{WORKER}.ranks": [0, 1]}, "there is no rank 1; actor_rollout_ref has 1 processes"),
        ({STEPS: [1], "actor_rollout_ref.ref.profiler.enable": True}, "but no role of this run is profiled; set"),
    ],
)
def test_what_cannot_be_profiled_is_refused(finish, keys, words):
    refused(words, finish, keys)
