"""Nsight Systems: a step can only be recorded in a process that `nsys profile` has started. Ray's workers are started
under it. Where workers are in this process or forked by a child of it, or it has options of its own, the command starts
itself again under it. The workers say when a step begins and ends (`workers/profiler.py`)."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from burnish.config import PPOConfig
from burnish.config.key import read
from burnish.config.profiler import PROFILED
from burnish.config.values import show
from burnish.errors import ConfigError
from burnish.trainer import restart

log = logging.getLogger(__name__)

VARIABLE = "BURNISH_NSYS"  # set in the environment of a command that was started again
UNDER = ("NSYS_PROFILING_SESSION_ID", VARIABLE)  # the first is nsys's own
COMMON = {"trace": "cuda,nvtx,cublas,cudnn", "force-overwrite": "true"}
FORKED = {"trace-fork-before-exec": "true"}
STEPS = {"capture-range": "cudaProfilerApi", "capture-range-end": "repeat"}  # record the chosen steps only


def is_used(config: PPOConfig) -> bool:
    sections = (read(config, f"{name}.profiler") for name in PROFILED)
    return any(section.enable and section.tool == "nsys" for section in sections)


def enter(config: PPOConfig) -> None:
    """Start this command again under nsys, where it is to be under it and is not yet."""
    has_workers = config.trainer.executor != "ray"
    if not is_used(config) or any(name in os.environ for name in UNDER):
        return
    if has_workers or config.controller_nsight_options:
        of_workers = (STEPS, FORKED, config.worker_nsight_options) if has_workers else ()
        under = command(config, "controller", COMMON, *of_workers, config.controller_nsight_options)
        if restart.can_start_again():
            restart.start_again({VARIABLE: "1"}, under)
        log.warning("this program is not under nsys, which records nothing; start it with %s", " ".join(under))


def workers(config: PPOConfig) -> Callable[[str], list[str]] | None:
    """What a worker process of Ray with this name is started under, in front of its Python; None: nothing."""
    if not is_used(config):
        return None
    return lambda name: command(config, name, COMMON, STEPS, config.worker_nsight_options)


def command(config: PPOConfig, name: str, *options: Mapping[str, Any]) -> list[str]:
    """`nsys profile` with these options; later ones win, and null leaves it at those before."""
    if shutil.which("nsys") is None:
        raise ConfigError(
            "global_profiler.tool=nsys: there is no program nsys on the PATH; install Nsight Systems' command line "
            "(nsight-systems-cli), or set global_profiler.tool=torch"
        )
    folder = Path(config.trainer.default_local_dir).absolute() / "nsys"
    folder.mkdir(parents=True, exist_ok=True)
    words = ["nsys", "profile", f"--output={folder / name}"]
    chosen = {option: value for some in options for option, value in some.items() if value is not None}
    for option, value in chosen.items():
        words += [f"--{option}={show(value)}"] if len(option) > 1 else [f"-{option}", show(value)]
    return words
