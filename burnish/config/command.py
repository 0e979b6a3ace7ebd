"""From a command line to the keys that were set for each job, by Hydra.

`parse_command` takes out our own flags, finds the recipe, and turns every `key=value` into `++key=value`: whether a key
is known is decided by our tree, not by what a recipe happens to contain. `compose_jobs` lets Hydra read the recipe and
the overrides and nothing else: the built-in recipes in its store are empty, so what it hands back holds exactly the
keys that somebody set. Its working directory, output folder and logging are switched off.
"""

import argparse
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import burnish
from burnish.config.nearest import nearest
from burnish.errors import ConfigError, NotAvailable

HERE = "the working directory"
RESOLVED = "# Every key of a run, with what follows from other keys filled in. To run it again, use recipe.yaml."
BUILTIN = ("ppo_trainer", "sft_trainer", "rm_trainer", "generation", "evaluation")
QUIET = (
    "hydra.run.dir=.",
    "hydra.output_subdir=null",
    "hydra.job.chdir=false",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
)
# What is in quotes already; or, as a whole value or item, a number with an underscore and what stands before it.
QUOTED_OR_NUMBER = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|([=\[(,]\s*)([\d.eE+-]+_[\d._eE+-]*)(?=\s*(?:[\]),]|$))"""
)


@dataclass(frozen=True)
class Flags:
    plan: bool = False
    debug: bool = False
    print_config: bool = False
    gpu_memory: int | None = None  # bytes of each GPU that is planned for; None: the device that is here


@dataclass
class CommandLine:
    flags: Flags
    config_name: str
    options: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    typed: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)


class _WordParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. Keys are set as section.key=value; --help lists them")


def parse_command(argv: list[str], builtin: str) -> CommandLine:
    """Split a command line into flags, recipe and overrides; `builtin` is the name of the recipe with the defaults."""
    parser = _WordParser(add_help=False, allow_abbrev=False)
    for names in (["--plan"], ["--debug"], ["--multirun", "-m"], ["--resolve"], ["--run", "-r"]):
        parser.add_argument(*names, action="store_true")  # --resolve and --run are what happens anyway
    parser.add_argument("--gpu-memory", metavar="GIB")
    for names in (["--cfg", "-c"], ["--config-name", "-cn"], ["--config-path", "-cp"], ["--config-dir", "-cd"]):
        parser.add_argument(*names)
    options, overrides = parser.parse_known_args(argv)
    if options.cfg not in (None, "job"):
        raise ConfigError(f"--cfg {options.cfg}: --cfg job prints the whole configuration; the other forms are Hydra's")
    try:
        memory = None if options.gpu_memory is None else float(options.gpu_memory)
    except ValueError:
        memory = math.nan
    if memory is not None and not (options.plan and 1 <= memory < math.inf):
        raise ConfigError(
            f"--gpu-memory {options.gpu_memory}: it is the memory of the GPUs that --plan plans for, in GiB; give a "
            "number of at least 1, together with --plan"
        )
    flags = Flags(options.plan, options.debug, options.cfg == "job", int(memory * 2**30) if memory else None)
    command = CommandLine(flags, builtin)
    folder = _choose_recipe(command, options.config_path, options.config_name, builtin)
    if options.config_dir:
        command.options += ["--config-dir", str(Path(options.config_dir).expanduser())]
    if options.multirun:
        command.options.append("--multirun")
    for text in overrides:
        _add_override(command, text, folder)
    return command


def keep_text(command: CommandLine, is_text: Callable[[str], bool]) -> None:
    """Quote 1_2.0 under keys that hold text and no numbers: Hydra leaves underscores out, and would read 12.0."""
    for i, override in enumerate(command.overrides):
        key = override.lstrip("+").partition("=")[0].strip()
        if is_text(key):
            command.overrides[i] = QUOTED_OR_NUMBER.sub(
                lambda found: f"{found[1]}'{found[2]}'" if found[2] else found[0], override
            )


def _choose_recipe(command: CommandLine, path: str | None, name: str | None, builtin: str) -> Path | None:
    """Set the recipe's name and folder; the folder is the working directory where only a name was given."""
    if name == "ppo_megatron_trainer":
        raise NotAvailable("training with Megatron-core (asked for by --config-name=ppo_megatron_trainer)")
    if path is None and (name is None or name == builtin):
        return None
    if name is not None and "/" in name and path is None:
        path, _, name = name.rpartition("/")
    wanted = Path(path or ".").expanduser()
    places = [Path.cwd() / wanted] + ([Path(burnish.__file__).parents[1] / wanted] if path else [])  # of a checkout
    folders = list(dict.fromkeys(place.resolve() for place in places if place.is_dir()))
    if not folders:
        raise ConfigError(f"--config-path={path}: no such folder in {HERE} ({Path.cwd()})")
    command.config_name = name = name.removesuffix(".yaml") if name else builtin
    folder = folders[0] if name == builtin else _folder_with(name, folders)
    command.options += ["--config-path", str(folder)]
    return folder


def _folder_with(name: str, folders: list[Path]) -> Path:
    """The first folder that has the recipe; a name that was typed and is in none of them is a mistake. So is what
    `to_yaml` wrote: it sets every key, also those that follow from others, and an override would collide with them."""
    for recipe in (folder / f"{name}.yaml" for folder in [*folders, Path.cwd()]):
        if recipe.is_file():
            with recipe.open(encoding="utf-8", errors="replace") as lines:
                if lines.readline().rstrip("\n") != RESOLVED:
                    return recipe.parent
            fix = "keep the keys that you set"
            if recipe.with_name("recipe.yaml").is_file():
                fix = "use --config-name=recipe, the keys that the run was given"
            raise ConfigError(f"{recipe}: a resolved configuration, with every key filled in, is not a recipe; {fix}")
    there = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
    hint = f"; did you mean {near}?" if (near := nearest(name, there)) else ""
    hint += f" (there: {', '.join(there)})" if there else ", nor any other recipe"
    raise ConfigError(f"--config-name={name}: no {name}.yaml in {' or '.join(map(str, folders))}{hint}")


def _add_override(command: CommandLine, text: str, folder: Path | None) -> None:
    """One `key=value`, `+key=value`, `++key=value`, `--key=value` or `~key`."""
    if text.startswith("--") and "=" in text:
        text = text[2:]
    if text.startswith("-"):
        raise ConfigError(f"unknown option {text!r}; keys are set as section.key=value, --help lists them")
    key = text.lstrip("+~").partition("=")[0].strip()
    is_group = folder is not None and (folder / key.partition("@")[0]).is_dir()
    if key == "hydra" or key.startswith(("hydra.", "hydra/")) or is_group:
        command.overrides.append(text)
    elif text.startswith("~"):
        if "=" in text:
            raise ConfigError(f"{text}: ~{key} removes the recipe's value of {key} and takes no value")
        command.removed.add(key)
    else:
        if "=" not in text:
            raise ConfigError(
                f"{text!r} is not an option or a key with a value; keys are set as section.key=value, --help lists them"
            )
        command.typed.add(key)
        # `~/` at the start of a value or list item: neither the shell nor Hydra's grammar takes it there.
        expanded = re.sub(r"(?<=[=\[,])~(?=/)", lambda _: str(Path.home()), text.lstrip("+"))
        command.overrides.append("++" + expanded)


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
    said = [text for text in said if "ConfigStore schema" not in text]  # a recipe may be called like a built-in one
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
