"""The way in: from `argv` to configuration objects. `run(argv, schema, finish, task)` composes, finishes and checks
every job of a command before the first one starts; `load_ppo(argv)` and its like load one job, for programs that finish
it themselves."""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic

from burnish.config.aliases import ALIASES, EVAL_ALIASES, GENERATION_ALIASES, RM_ALIASES, SFT_ALIASES, Rewrite
from burnish.config.build import Config, Loaded, build, complaint, to_yaml
from burnish.config.command import compose_jobs, keep_text, parse_command
from burnish.config.generation import EvalConfig, GenerationConfig
from burnish.config.key import keys_of, read
from burnish.config.ppo import PPOConfig
from burnish.config.supervised import RMConfig, SFTConfig
from burnish.config.values import is_text, show
from burnish.errors import ConfigError
from burnish.literal import print_text
from burnish.user_code import import_libraries

PLACE = ("trainer.default_local_dir", "trainer.project_name", "trainer.experiment_name")  # where a run is
EXTERNAL = "VERL_USE_EXTERNAL_MODULES"  # as `….external_lib`, for all models
LABEL = 100  # characters of a run's name that a sweep adds at most


@dataclass(frozen=True)
class Schema(Generic[Config]):
    """One entry point: its name, its built-in recipe, the root of its keys, and other spellings of them."""

    name: str
    builtin: str
    root: type[Config]
    aliases: Mapping[str, str | Rewrite] = field(default_factory=dict)
    output: str | None = None  # key of the one file that a job writes and no other may; None: it has a run folder


PPO = Schema("ppo", "ppo_trainer", PPOConfig, ALIASES)
SFT = Schema("sft", "sft_trainer", SFTConfig, SFT_ALIASES)
RM = Schema("rm", "rm_trainer", RMConfig, RM_ALIASES)
GENERATION = Schema("generate", "generation", GenerationConfig, GENERATION_ALIASES, output="data.output_path")
EVAL = Schema("eval", "evaluation", EvalConfig, EVAL_ALIASES, output="data.output_path")


def run(
    argv: list[str],
    schema: Schema[Config],
    finish: Callable[[Config, frozenset[str]], list[str]],
    task: Callable[[Loaded[Config]], int | None],
) -> int:
    """Load and finish every job of a command line, then run `task` on each; `--cfg job` prints it instead.
    `finish(config, explicit)` fills in derived values, refuses what cannot work, and returns notices. Returns the
    highest of the exit codes that `task` returned (None is 0)."""
    if "--help" in argv or "-h" in argv:
        print_text(f"usage: section.key=value … [flags]; `burnish {schema.name} --help` lists every key and flag")
        return 0
    jobs = load(argv, schema)
    for loaded in jobs:
        loaded.notices += finish(loaded.config, loaded.explicit)
    taken = set()
    for output in (read(job.config, schema.output) for job in jobs if schema.output):
        if (place := os.path.realpath(output)) in taken:  # the last one would win
            raise ConfigError(
                f"--multirun: several jobs have the same {schema.output}={output}; sweep it too, or name it by what is "
                "swept"
            )
        taken.add(place)
    code = 0
    for loaded in jobs:
        if loaded.flags.print_config:
            loaded.log_notices()
            print_text(to_yaml(loaded.config).rstrip("\n"))
        else:
            code = max(code, task(loaded) or 0)
    return code


def load_ppo(argv: list[str]) -> Loaded[PPOConfig]:
    return _only(load(argv, PPO))


def load_sft(argv: list[str]) -> Loaded[SFTConfig]:
    return _only(load(argv, SFT))


def load_rm(argv: list[str]) -> Loaded[RMConfig]:
    return _only(load(argv, RM))


def _only(jobs: list[Loaded[Config]]) -> Loaded[Config]:
    if len(jobs) != 1:
        raise ConfigError(f"--multirun asks for {len(jobs)} jobs where one is expected")
    return jobs[0]


def load(argv: list[str], schema: Schema[Config]) -> list[Loaded[Config]]:
    """All jobs of a command line; several with --multirun."""
    command, known = parse_command(argv, schema.builtin), keys_of(schema.root)
    for name in command.removed:
        is_there = any(name == other or name.startswith(other + ".") or other.startswith(name + ".") for other in known)
        if not is_there and name not in schema.aliases:
            raise ConfigError(complaint(name, known))

    def holds_text(name: str) -> bool:
        target = schema.aliases.get(name, name)
        return isinstance(target, str) and target in known and is_text(known[target])

    keep_text(command, holds_text)
    jobs = []
    for given in compose_jobs(command):
        job = build(given, schema.root, schema.aliases, frozenset(command.typed))
        import_libraries(libraries(job.config))
        job.notices, job.flags = list(dict.fromkeys(command.notices + job.notices)), command.flags
        jobs.append(job)
    return jobs if schema.output else _with_own_folders(jobs)


def libraries(config: Any) -> dict[str, Any]:
    """The keys `….external_lib` that are set, with their values, and verl's variable for the same."""
    names = [name for name in keys_of(type(config)) if name.endswith(".external_lib")]
    given = {name: read(config, name) for name in names} | {EXTERNAL: os.environ.get(EXTERNAL)}
    return {name: value for name, value in given.items() if value}


def _with_own_folders(jobs: list[Loaded[Config]]) -> list[Loaded[Config]]:
    """Name the runs of a sweep whose folders would be the same by what was swept. A run must resume neither from its
    neighbour nor from a job of another sweep."""
    places = [tuple(read(job.config, name) for name in PLACE) for job in jobs]
    if len(set(places)) == len(jobs):
        return jobs
    labels = _labels([job.given for job in jobs])
    same = Counter(zip(places, labels, strict=True))
    for number, (job, place, label) in enumerate(zip(jobs, places, labels, strict=True), 1):
        if same[place, label] > 1:
            label = f"{label}-{number}".lstrip("-")
        trainer = job.config.trainer
        trainer.experiment_name = job.given["trainer.experiment_name"] = f"{trainer.experiment_name}-{label}"
        if trainer.default_local_dir:
            trainer.default_local_dir = f"{trainer.default_local_dir}/{label}"
            job.given["trainer.default_local_dir"] = trainer.default_local_dir
        job.notices.append(f"job {number} of {len(jobs)} is called {trainer.experiment_name}")
    return jobs


def _labels(given: list[dict[str, Any]]) -> list[str]:
    """What distinguishes the jobs, as parts of file names: `lr_1e-06-seed_3`. A key is called by the end of its name
    that no other has: `lr`, or `actor.optim.lr` next to `critic.optim.lr`. There is no `=` in them: Hydra's grammar
    would ask for quotes in each key that names such a folder."""
    names = sorted({name for keys in given for name in keys if name not in PLACE})
    swept = [name for name in names if any(keys.get(name) != given[0].get(name) for keys in given)]
    short = {}
    for name in swept:
        parts = name.split(".")
        ends = (".".join(parts[-count:]) for count in range(1, len(parts)))
        short[name] = next((e for e in ends if sum(f".{other}".endswith(f".{e}") for other in swept) == 1), name)

    def part(name: str, value: Any) -> str:
        return f"{short[name]}_" + re.sub(r"[^\w.+-]+", "_", show(value)).strip("_")

    return ["-".join(part(name, keys[name]) for name in swept if name in keys)[:LABEL] for keys in given]
