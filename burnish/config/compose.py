"""Hydra: from a command line to the keys that were set for each job.

Hydra reads the recipe and the overrides and nothing else: the built-in recipes in its store are empty, so what it hands
back holds exactly the keys that somebody set. It composes all jobs (one, or those of `--multirun`) before the first one
runs, and is off the stack by then. Its working directory, output folder and logging are switched off.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from burnish.config.command import CommandLine
from burnish.errors import ConfigError

BUILTIN = ("ppo_trainer", "sft_trainer", "rm_trainer", "generation", "evaluation")
QUIET = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra.job.chdir=false",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)


def compose_jobs(command: CommandLine) -> list[dict[str, Any]]:
    """The keys set for every job of a command, as nested mappings; Hydra's own complaints become ConfigErrors."""
    from hydra import main
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    jobs: list[dict[str, Any]] = []

    def collect(composed: DictConfig) -> None:
        jobs.append(OmegaConf.to_container(composed))  # type: ignore[arg-type]

    for name in BUILTIN:
        ConfigStore.instance().store(name, {})
    try:
        with _as_hydra_wants_it(command):
            main(version_base=None, config_path=None, config_name=command.config_name)(collect)()
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(_in_our_words(error)) from error
    for given in jobs:
        _take_back(given, command)
    return jobs


@contextmanager
def _as_hydra_wants_it(command: CommandLine) -> Iterator[None]:
    """Hydra reads `sys.argv` and an environment variable, warns of missing search paths, and wants a sweep folder."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    with tempfile.TemporaryDirectory() as sweep, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sys.argv = [argv[0], *command.options, *QUIET, f"hydra.sweep.dir={sweep}", *command.overrides]
        os.environ["HYDRA_FULL_ERROR"] = "1"  # errors rise to us instead of ending the process
        try:
            yield
        finally:
            sys.argv = argv
            os.environ.pop("HYDRA_FULL_ERROR")
            if full_error is not None:
                os.environ["HYDRA_FULL_ERROR"] = full_error
    said = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]  # Hydra's own
    command.notices += list(dict.fromkeys(said))


def _take_back(given: dict[str, Any], command: CommandLine) -> None:
    """Carry out `~key`: what the recipe set is taken back, and the default holds again."""
    for name in command.removed:
        *parents, last = name.split(".")
        section: Any = given
        for part in parents:
            section = section.get(part) if isinstance(section, dict) else None
        if isinstance(section, dict) and last in section:
            del section[last]
        else:
            command.notices.append(f"~{name}: the recipe does not set it; its default stays")


def _in_our_words(error: Exception) -> str:
    """Hydra's message in one line, with the usual remedy."""
    lines = [line.strip() for line in str(error).replace("++", "").splitlines() if "hydra.cc" not in line]
    if "Ambiguous value" in lines[0]:
        return f"{lines[0]}: a list is written key=[a,b], several runs need --multirun"
    if override := getattr(error, "override", None):
        return (
            f"cannot read {override.lstrip('+')!r} ({lines[0]}): a value with spaces, commas, brackets or '=' "
            """needs quotes inside quotes, as in 'key="a, b"'"""
        )
    return " ".join(lines)
