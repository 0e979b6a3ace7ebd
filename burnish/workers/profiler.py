"""Profiles of chosen steps, made by the workers themselves: `start_profile(step)` and `stop_profile()`.

A profile covers the whole process, with all of its threads, from the start to the end of the step; with `discrete`, one
call of a role. Files are `<save_path>/step_<n>/<role>-<rank>[.<call>]`: .json.gz of torch's profiler, .pickle of GPU
memory; with nsys the process was started under it (`trainer/nsys.py`) and is told when to record. A tool is used once
at a time in a process: roles that share it have one file.
"""

import gzip
import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from burnish import spans
from burnish.config import PPOConfig
from burnish.config.key import read
from burnish.config.profiler import ProfilerConfig
from burnish.controller import Dispatch, Worker, register
from burnish.errors import ConfigError

log = logging.getLogger(__name__)

Record = Callable[[Path], AbstractContextManager[None]]  # the file without its ending

_at_work: set[str] = set()  # the tools that record this process now


class ProfiledWorker(Worker):
    """A worker that can be profiled. Where no section covers it, it only records what it waits for."""

    config: PPOConfig
    profiled: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # section with `profiler` → the methods it is about
    _profile: ExitStack | None = None

    def profile_sections(self) -> dict[str, ProfilerConfig]:
        """The profiler sections that cover this worker. ConfigError where it lacks the device for their tool."""
        names = self.profiled if self.config.global_profiler.steps else ()
        found = {name: read(self.config, f"{name}.profiler") for name in names}
        mine = {name: section for name, section in found.items() if section.covers(self.rank)}
        for section in mine.values():
            if section.tool != "torch" and self.device.type != "cuda":
                raise ConfigError(
                    f"global_profiler.tool={section.tool} needs a GPU, and the run is on a CPU; set "
                    "global_profiler.tool=torch (memory in global_profiler.global_tool_config.torch.contents adds "
                    "every allocation)"
                )
        return mine

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_profile(self, step: int) -> None:
        """Record from now on, until `stop_profile`."""
        role, run = next(iter(self.profiled), ""), self.config.trainer.default_local_dir
        with ExitStack() as stack:
            stack.enter_context(spans.waits_recorded())
            for name, section in self.profile_sections().items():
                folder = Path(section.save_path or f"{run}/profiles").expanduser()
                place = folder / f"step_{step}" / f"{role}-{self.rank}"
                record = partial(recorded, section, self.device)
                calls = {f"{type(self).__name__}.{method}" for method in self.profiled[name]}
                whole = spans.marked(each_call(calls, place, record)) if section.discrete else record(place)
                stack.enter_context(whole)
            self._profile = stack.pop_all()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def stop_profile(self) -> None:
        """Write what was recorded."""
        profiles, self._profile = self._profile, None
        if profiles is not None:
            profiles.close()


def each_call(calls: set[str], place: Path, record: Record) -> Callable[[str], AbstractContextManager[Any]]:
    """A mark that records each of these calls into a file."""
    seen = Counter[str]()

    def mark(name: str) -> AbstractContextManager[Any]:
        if name not in calls:
            return nullcontext()
        seen[name] += 1
        again = f"-{seen[name]}" if seen[name] > 1 else ""
        return record(place.with_name(f"{place.name}.{name.rpartition('.')[2]}{again}"))

    return mark


@contextmanager
def recorded(section: ProfilerConfig, device: torch.device, place: Path) -> Iterator[None]:
    """Record this process with the section's tool."""
    if section.tool in _at_work:
        yield
        return
    _at_work.add(section.tool)
    try:
        with TOOLS[section.tool](section, device, place):
            yield
    finally:
        _at_work.discard(section.tool)


def written(write: Callable[[str], object], path: Path) -> None:
    """Training does not fail for a file about it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(str(path))
    except (OSError, RuntimeError) as error:
        log.warning("the profile %s could not be written: %s", path, error)


@contextmanager
def _torch(section: ProfilerConfig, device: torch.device, place: Path) -> Iterator[None]:
    contents = set(section.tool_config.torch.contents)
    kinds = {"cpu": ProfilerActivity.CPU} | ({"cuda": ProfilerActivity.CUDA} if device.type == "cuda" else {})
    recorder = profile(
        activities=[kinds[name] for name in kinds if name in contents] or list(kinds.values()),
        record_shapes="shapes" in contents,
        profile_memory="memory" in contents,
        with_stack="stack" in contents,
        # Also threads of engines; without them torch can record allocations.
        experimental_config=_ExperimentalConfig(profile_all_threads="memory" not in contents),
    )
    with recorder, spans.marked(record_function):
        yield

    def write(path: str) -> None:
        plain = path.removesuffix(".gz")
        recorder.export_chrome_trace(plain)
        # torch compresses line by line, as small as it can be: that takes several times as long.
        with open(plain, "rb") as source, gzip.open(path, "wb", compresslevel=1) as target:
            shutil.copyfileobj(source, target)
        os.unlink(plain)

    written(write, place.with_name(f"{place.name}.json.gz"))


@contextmanager
def _memory(section: ProfilerConfig, device: torch.device, place: Path) -> Iterator[None]:
    """Also where the block runs out of memory."""
    entries = section.tool_config.torch_memory.trace_alloc_max_entries
    torch.cuda.memory._record_memory_history(max_entries=entries, clear_history=True)
    try:
        yield
    finally:
        written(torch.cuda.memory._dump_snapshot, place.with_name(f"{place.name}.pickle"))
        torch.cuda.memory._record_memory_history(enabled=None)


@contextmanager
def _nsys(section: ProfilerConfig, device: torch.device, place: Path) -> Iterator[None]:
    torch.cuda.synchronize(device)
    with torch.cuda.profiler.profile(), spans.marked(torch.cuda.nvtx.range):
        yield
        torch.cuda.synchronize(device)


TOOLS = {"torch": _torch, "torch_memory": _memory, "nsys": _nsys}
