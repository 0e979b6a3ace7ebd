"""The commands that are configured by keys, how one is run as a program, and their help.

`burnish ppo --help [words] [all]` shows the keys with their defaults and meanings, from the configuration classes
alone. Keys that can only have their default in this version are counted but not listed; `all` lists them too.
"""

import dataclasses
import difflib
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

from burnish.config import EvalConfig, GenerationConfig, PPOConfig, RMConfig, SFTConfig
from burnish.config.key import KnownKey, keys_of
from burnish.config.values import allowed, show
from burnish.entry.ending import importing, leave, terminated_as_interrupted, watched
from burnish.entry.guard import guard
from burnish.errors import ConfigError
from burnish.literal import print_text

HELP = ("-h", "--help")
GPU_MEMORY = "\n  --gpu-memory GIB    with --plan: for GPUs of this size, such as 80, not the device that is here"
PLAN = "--plan              print the derived batch sizes and the memory they take, and stop" + GPU_MEMORY
COUNT = "--plan              print the number of examples, tokens and steps, and the memory, and stop" + GPU_MEMORY
MODEL = "model.path=Qwen/Qwen2.5-0.5B-Instruct"
ALL = "all"
FIRST = {  # the keys of `burnish ppo` that one needs, in words as short as those of the overview
    "actor_rollout_ref.model.path": "the model: a folder, a checkpoint, or a hub id",
    "data.train_files": "rows with prompts: parquet, json or jsonl",
    "custom_reward_function.path": "your reward function; none: the scorer of each row's data_source",
    "algorithm.adv_estimator": "the algorithm: gae (PPO), grpo, rloo, remax, reinforce_plus_plus, …",
    "actor_rollout_ref.rollout.n": "responses per prompt",
    "data.train_batch_size": "prompts per step, at most as many as there are rows",
    "data.max_response_length": "longest response, in tokens",
    "actor_rollout_ref.actor.optim.lr": "learning rate",
    "trainer.total_training_steps": "steps in all; null: by trainer.total_epochs",
    "trainer.experiment_name": "name of the run; the same name resumes it",
}
PER_NODE = "trainer.n_gpus_per_node"
OF_TORCHRUN = (
    "TORCHELASTIC_", "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
WIDTH, COLUMN = 118, 54  # of the text, and where the meaning of a key starts
FLAGS = """\
  --config-name NAME  start from the recipe NAME.yaml, here or in --config-path FOLDER
  --cfg job           print the whole configuration, and stop
  --multirun          one run per value of key=a,b
  --debug             show a traceback with an error"""


@dataclass(frozen=True)
class KeyCommand:
    name: str
    summary: str
    root: type  # its configuration
    example: tuple[str, ...]  # keys of a command that works
    flag: str = ""  # its own flag and what it does, as a line of the help

    def run(self, load: Callable[[], Callable[[list[str]], int | None]], argv: list[str]) -> int | None:
        """Print the help if the command line asks for it (`--help [words] [all]`), else run the `main` that `load`
        imports, so that signals always end it."""
        if any(word in HELP for word in argv):
            print_text(explain(self, [word for word in argv if not word.startswith("-")]))
            return 0
        with importing():
            import_module("hydra")
            main = load()
        words = argv if self.root is EvalConfig else of_torchrun(argv)
        if words is None:
            return 0
        with watched(), terminated_as_interrupted():
            return main(words)


def of_torchrun(argv: list[str]) -> list[str] | None:
    """The command line under `torchrun`, of whose processes the first is the controller and starts as many workers;
    None in the others, which have nothing to do."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return argv
    rank, count, machines = (int(os.environ[name]) for name in ("RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
    if machines > 1:
        raise ConfigError(
            f"torchrun on {machines} machines: it starts the processes of one; for several use Ray (docs/cluster.md)"
        )
    for name in list(os.environ):
        if name.startswith(OF_TORCHRUN):  # a program that a worker starts is none of them
            del os.environ[name]
    if rank > 0:
        return None
    said = count == 1 or any(word.lstrip("+").startswith(f"{PER_NODE}=") for word in argv)
    return argv if said else [*argv, f"{PER_NODE}={count}"]


TRAIN, VAL = "data.train_files=train.parquet", "data.val_files=test.parquet"
FAIL = "--fail-under X      exit with 1 if the mean score of a data source is below X"
RL_EXAMPLE = ("algorithm.adv_estimator=grpo", TRAIN, VAL, f"actor_rollout_ref.{MODEL}")
PAIRS = "reward-model training on chosen and rejected answers"
SAMPLES, OUTPUT = "sample responses to the prompts of a file", "data.output_path=out.parquet"
KEY_COMMANDS = {
    command.name: command
    for command in (
        KeyCommand("ppo", "RL training, every algorithm", PPOConfig, RL_EXAMPLE, PLAN),
        KeyCommand("sft", "supervised fine-tuning", SFTConfig, (TRAIN, MODEL), COUNT),
        KeyCommand("rm", PAIRS, RMConfig, ("data.train_files=pairs.parquet", VAL, MODEL), COUNT),
        KeyCommand("generate", SAMPLES, GenerationConfig, ("data.path=test.parquet", OUTPUT, MODEL)),
        KeyCommand("eval", "score a file of responses, per data source", EvalConfig, ("data.path=out.parquet",), FAIL),
    )
}


def run_program(name: str, main: Callable[[list[str]], int | None]) -> NoReturn:
    """`python3 -m burnish.trainer.X …`: the same as `burnish NAME …`; `main` takes the command line."""
    leave(guard(lambda argv: KEY_COMMANDS[name].run(lambda: main, argv), sys.argv[1:]))


def explain(command: KeyCommand, words: list[str]) -> str:
    """The help text of a command; with `words`, only the keys whose dotted name contains one of them."""
    root = command.root
    parts = [word for word in words if word != ALL]
    found = select(keys_of(root), parts)
    # Where none of them can be set yet all are shown, so that a question about one is answered.
    usable = {name: key for name, key in found.items() if not isinstance(key.about.later, str) or key.about.now}
    chosen = found if ALL in words else usable or found
    everything = f"`burnish {command.name} --help {' '.join([*parts, ALL])}`"
    hint = f"not shown: {len(found) - len(chosen)} not available yet; {everything} shows all"
    lines = [
        f"burnish {command.name}: {command.summary}",
        "",
        "example:",
        "  " + " \\\n    ".join([f"burnish {command.name}", *command.example]),
        "",
        f"usage: burnish {command.name} [key=value …] [flags]",
        "",
        *(
            [f"keys to begin with (default in brackets):\n{first_keys()}", ""]
            if root is PPOConfig and not words
            else []
        ),
        "flags:",
        *([f"  {command.flag}"] if command.flag else []),
        FLAGS,
        "",
        (f"keys with {' or '.join(parts)} in their name" if parts else "all keys") + " (default in brackets)",
        *([hint] if len(chosen) < len(found) else []),
    ]
    for name, doc in sections(root(), ""):
        members = [key for key in chosen.values() if key.name.rpartition(".")[0] == name]
        if members:
            lines += ["", f"{name or command.name}: {doc}" if doc else name, *(line(key) for key in members)]
    return "\n".join(lines)


def first_keys() -> str:
    """The keys to begin with, a line each."""
    known = keys_of(PPOConfig)
    heads = {name: f"  {name} [{show(known[name].default)}]" for name in FIRST}
    return "\n".join(f"{heads[name]:<{COLUMN}}{words}" for name, words in FIRST.items())


def select(known: dict[str, KnownKey], words: list[str]) -> dict[str, KnownKey]:
    """The keys that have one of the words as a part of their name (`rollout`, `optim.lr`), else somewhere in it."""
    whole = {name: key for name, key in known.items() if any(f".{word}." in f".{name}." for word in words)}
    loose = {name: key for name, key in known.items() if any(word in name for word in words)}
    if not words or whole or loose:
        return whole or loose or known
    parts = {part for name in known for part in [name, *name.split(".")]}
    near = difflib.get_close_matches(words[0], parts, n=1, cutoff=0.8)
    hint = f"Did you mean {near[0]}?" if near else "Without a word, --help lists the keys"
    raise ConfigError(f"no key with {' or '.join(words)} in its name. {hint}")


def sections(node: Any, name: str) -> Iterator[tuple[str, str]]:
    """The sections of a configuration, outermost first: dotted name and the first line of its class's docstring."""
    yield name, (type(node).__doc__ or "").strip().partition("\n")[0].rstrip(".")
    for item in dataclasses.fields(node):
        value = getattr(node, item.name)
        if dataclasses.is_dataclass(value):
            yield from sections(value, f"{name}.{item.name}".lstrip("."))


def line(key: KnownKey) -> str:
    """One key: its name, default and meaning, what it may be, and whether it can be used."""
    from burnish.algorithms import advantages, losses  # on demand, as all that a command needs

    about = key.about
    remarks = [about.doc]
    if about.options:
        remarks.append(allowed(key))
    if names := [name for table in (advantages.TABLE, losses.TABLE) if table.key == key.name for name in table.entries]:
        remarks.append("built in: " + ", ".join(names))
    if isinstance(about.later, str):
        now = ", ".join(show(value) for value in (key.default, *about.now))
        remarks.append(f"not available yet: other values than {now}" if about.now else "not available yet")
    elif about.later:
        remarks.append("not available yet: " + ", ".join(str(value) for value in about.later))
    if about.inert:
        remarks.append(f"no effect: {about.inert}")
    head, indent = f"  {key.name} [{show(key.default)}]", " " * COLUMN
    words = "; ".join(remarks)
    text = textwrap.fill(words, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return f"{head:<{COLUMN}}{text.lstrip()}" if len(head) < COLUMN else f"{head}\n{text}"
