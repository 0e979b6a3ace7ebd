"""`global_profiler` and the `profiler` sections: which steps of which processes are profiled, and with which tool."""

from dataclasses import dataclass

from burnish.config.key import Keys, key, section

TOOLS = ("torch", "torch_memory", "nsys")
CONTENTS = ("cpu", "cuda", "memory", "shapes", "stack")
OPTIONS = ("controller_nsight_options", "worker_nsight_options")
RULES = "config/rules/profiling.py"
# Each has a section `profiler`. The first covers the whole worker; the second to fourth are parts of it.
PROFILED = (
    "actor_rollout_ref", "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout", "critic",
    "reward_model",
)  # fmt: skip


@dataclass
class TorchToolConfig(Keys, reader=RULES):
    """torch's profiler: operations, on the CPU and the GPU."""

    contents: list[str] = key(
        None, "what is kept of ops: memory, shapes, stack; cpu or cuda: of this device only", choices=CONTENTS
    )
    discrete: bool = key(None, "one file per call instead of one per step; null: false")


@dataclass
class MemoryToolConfig(Keys, reader=RULES):
    """torch's memory history: allocations on a GPU."""

    trace_alloc_max_entries: int = key(None, "allocations kept, the newest; null: 100000", low=1)


@dataclass
class NsysToolConfig(Keys, reader=RULES):
    """Nsight Systems."""

    discrete: bool = key(None, "one range of cudaProfilerApi per call instead of one per step; null: false")


@dataclass
class ToolsConfig(Keys):
    """The options of each tool."""

    torch: TorchToolConfig = section(TorchToolConfig)
    torch_memory: MemoryToolConfig = section(MemoryToolConfig)
    nsys: NsysToolConfig = section(NsysToolConfig)


@dataclass
class ProfilerConfig(Keys, reader=RULES):
    """The processes of a role that are profiled. What is null is that of `global_profiler`."""

    enable: bool = key(None, "profile this role; null: where ranks are chosen, or no role is")
    all_ranks: bool = key(False, "profile every process of the role", "config/profiler.py")
    ranks: list[int] = key([], "profile these of its processes; []: the first", "config/profiler.py")
    tool: str = key(None, "torch, torch_memory or nsys", choices=TOOLS)
    save_path: str = key(None, "folder of its files")
    discrete: bool = key(None, "as tool_config.torch.discrete, for the chosen tool")
    tool_config: ToolsConfig = section(ToolsConfig)

    def covers(self, rank: int) -> bool:
        return self.enable and (self.all_ranks or rank in (self.ranks or [0]))


@dataclass
class GlobalProfilerConfig(Keys, reader=RULES):
    """The steps that are profiled, and what holds for all roles."""

    steps: list[int] | None = key(None, "steps to profile; null: none", "trainer/groups.py")
    tool: str = key(None, "null: nsys where options of nsys are set, otherwise torch", choices=TOOLS)
    save_path: str = key(None, "folder of the files; null: profiles/ in the run folder")
    profile_continuous_steps: bool = key(False, "one file for adjacent steps", inert="each step has its own files")
    global_tool_config: ToolsConfig = section(ToolsConfig)
