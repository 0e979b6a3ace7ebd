"""Profiling: which roles are profiled, with which tool and into which folder, and which keys have no effect."""

from burnish.config.engines import engine_spec
from burnish.config.key import read
from burnish.config.placement import pools_of
from burnish.config.ppo import PPOConfig
from burnish.config.profiler import OPTIONS, PROFILED, ProfilerConfig
from burnish.config.rules import Given, fill
from burnish.config.values import show
from burnish.errors import ConfigError

STEPS = "global_profiler.steps"
ROLLOUT = "actor_rollout_ref.rollout.profiler.enable"
ROLES = ("actor_rollout_ref", "critic", "reward_model")
MOST_ENTRIES = 100_000


def profiling(config: PPOConfig, given: Given) -> None:
    overall, sections = config.global_profiler, {name: read(config, f"{name}.profiler") for name in PROFILED}
    options = [name for name in OPTIONS if read(config, name)]
    if not overall.steps:
        keys = [name for name in given.explicit if name.startswith("global_profiler.") or ".profiler." in name]
        given.no_effect("no step is profiled", *sorted({*keys, *options} - {STEPS}))
        for section in sections.values():
            section.enable = False
        return
    if min(overall.steps) < 1:
        raise ConfigError(f"{STEPS}={show(overall.steps)}: the first step of a run is 1")
    if overall.tool is None:
        overall.tool = "nsys" if options else "torch"
        given.say(f"global_profiler.tool={overall.tool}, because {options[0] if options else STEPS} is set")
    _choose(config, sections)
    for name, section in sections.items():
        _inherit(config, name, section)
    rollout, engine = config.actor_rollout_ref.rollout, engine_spec(config.actor_rollout_ref.rollout.name)
    if rollout.profiler.enable and engine.own_weights:
        given.no_effect(f"{engine.label} generates in its own processes, which are not recorded", ROLLOUT)
    elif rollout.profiler.enable and rollout.profiler.discrete and config.agents_apart:
        given.no_effect(
            "agent loops ask for tokens from other processes, in no call of a step; use discrete=false", ROLLOUT
        )
    by_nsys = "nsys" in (section.tool for section in sections.values() if section.enable)
    if options and not by_nsys:
        given.no_effect("the tool is not nsys", *options)


def _choose(config: PPOConfig, sections: dict[str, ProfilerConfig]) -> None:
    """Switch each section on or off. On are those that say so; if none does, those whose ranks are chosen, or else all
    roles."""
    chosen = [name for name, section in sections.items() if section.enable]
    if not chosen:
        left_open = [name for name, section in sections.items() if section.enable is None]
        chosen = [name for name in left_open if sections[name].all_ranks or sections[name].ranks]
        chosen = chosen or [name for name in left_open if name in ROLES]
    processes = {role: pool.processes for pool in pools_of(config) for role in pool.roles}
    for name, section in sections.items():
        role = name.partition(".")[0]
        has_calls = config.reads_reference if name == "actor_rollout_ref.ref" else role in processes
        section.enable = name in chosen and has_calls
        for rank in section.ranks if section.enable else []:
            if not 0 <= rank < processes[role]:
                raise ConfigError(
                    f"{name}.profiler.ranks={show(section.ranks)}: there is no rank {rank}; {role} has "
                    f"{processes[role]} processes, ranks 0 to {processes[role] - 1}"
                )
    if not any(section.enable for section in sections.values()):
        steps = show(config.global_profiler.steps)
        raise ConfigError(
            f"{STEPS}={steps}, but no role of this run is profiled; set actor_rollout_ref.profiler.enable=true"
        )


def _inherit(config: PPOConfig, name: str, section: ProfilerConfig) -> None:
    overall = config.global_profiler
    fill(section, tool=overall.tool, save_path=overall.save_path)
    own, common = section.tool_config, overall.global_tool_config
    fill(own.torch, contents=common.torch.contents or [])
    fill(own.torch_memory, trace_alloc_max_entries=common.torch_memory.trace_alloc_max_entries or MOST_ENTRIES)
    whole = config.actor_rollout_ref.profiler.discrete if name.startswith("actor_rollout_ref.") else None
    of_tool = [getattr(getattr(tools, section.tool), "discrete", None) for tools in (own, common)]
    said = (of_tool[0], section.discrete, whole, of_tool[1])
    section.discrete = next((one for one in said if one is not None), False)
