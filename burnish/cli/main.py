"""`burnish <command> …`: the table of commands. The rest of the command line goes to the command's own `main(argv)`,
which is imported when it is called."""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from burnish import __version__
from burnish.config.actor import LOSSES
from burnish.config.algorithm import ESTIMATORS
from burnish.config.nearest import nearest
from burnish.entry.ending import importing, leave
from burnish.entry.guard import DEBUG, guard
from burnish.entry.keys import HELP, KEY_COMMANDS, first_keys
from burnish.errors import ConfigError
from burnish.literal import print_text


@dataclass(frozen=True)
class CliCommand:
    """One line of `burnish --help`, of a command with a module or with parts."""

    summary: str
    module: str = ""  # whose `main`, or the function after a colon, takes the rest of the command line
    parts: Mapping[str, "CliCommand"] = field(default_factory=dict)  # `burnish data make`
    examples: tuple[str, ...] = ()  # of a command with parts
    more: str = "Every command has --help."

    def load(self) -> Any:
        module, _, name = self.module.partition(":")
        return getattr(importlib.import_module(module), name or "main")


DATA = CliCommand(
    "make, check and show datasets",
    parts={
        "make": CliCommand("make rows from a known dataset, your files, or a seed", "burnish.cli.data_make"),
        "check": CliCommand("report what is in a file and what is wrong with it", "burnish.cli.data:check"),
        "show": CliCommand("print rows in readable form", "burnish.cli.data:show"),
    },
    examples=(
        "burnish data make gsm8k --out data/gsm8k",
        "burnish data check data/gsm8k/train.parquet data/gsm8k/test.parquet",
        "burnish data show data/gsm8k/test.parquet",
    ),
    more="`burnish data make --help` lists the tasks; every command has --help.",
)
RETRIEVER = CliCommand(
    "index and search passages, and serve them to the search agent",
    parts={
        "index": CliCommand("build the index of a corpus of passages", "burnish.cli.retriever:index"),
        "query": CliCommand("search an index and print the passages with scores", "burnish.cli.retriever:query"),
        "serve": CliCommand("run the retrieval server for the search agent", "burnish.search.serve_command"),
    },
    examples=(
        "burnish retriever index corpus.jsonl --out wiki-index",
        'burnish retriever query wiki-index "who wrote hamlet"',
        "burnish retriever serve wiki-index",
    ),
)
TRAINER_MODULES = {
    "ppo": "main_ppo", "sft": "sft_trainer", "rm": "rm_trainer", "generate": "main_generation", "eval": "main_eval",
}  # fmt: skip
COMMANDS = {
    "quickstart": CliCommand("train a small model by RL on this machine, in minutes", "burnish.cli.quickstart"),
    **{
        name: CliCommand(KEY_COMMANDS[name].summary, f"burnish.trainer.{module}")
        for name, module in TRAINER_MODULES.items()
    },
    "export": CliCommand("write a checkpoint as a Hugging Face folder", "burnish.export.command"),
    "chat": CliCommand("chat with a model or checkpoint in the terminal", "burnish.cli.serve:chat"),
    "serve": CliCommand("serve a model or checkpoint behind an OpenAI-compatible endpoint", "burnish.cli.serve"),
    "data": DATA,
    "status": CliCommand("show what a run is doing, what it waits for, or how it ended", "burnish.cli.runs:status"),
    "runs": CliCommand("list runs, the newest first: state, step, findings, last values", "burnish.cli.runs:runs"),
    "show": CliCommand("print samples of a run: turns, masked parts, reward, advantage", "burnish.cli.run_views:show"),
    "plot": CliCommand("draw the curves of runs as a PNG", "burnish.cli.run_views:plot"),
    "compare": CliCommand("compare runs: keys, final values, what is significant", "burnish.cli.run_views:compare"),
    "tensorboard": CliCommand("write TensorBoard's event files of a run", "burnish.cli.run_views:tensorboard"),
    "trace": CliCommand("write what all processes of a run did when, as a trace", "burnish.cli.run_views:trace"),
    "doctor": CliCommand(
        "say what is wrong with a run, or with this machine, and what to change", "burnish.cli.runs:doctor"
    ),
    "replay": CliCommand("re-run a NaN/Inf update that a run dumped", "burnish.cli.runs:replay"),
    "retriever": RETRIEVER,
    "dashboard": CliCommand("browse runs and trajectories in a web page", "burnish.cli.dashboard"),
}


# What people type for a command: an algorithm, or another word for it.
MEANT = {
    **{name: f"ppo algorithm.adv_estimator={name}" for name in ESTIMATORS},
    **{
        name: f"ppo algorithm.adv_estimator=grpo actor_rollout_ref.actor.policy_loss.loss_mode={name}"
        for name in LOSSES
        if name not in ESTIMATORS
    },
    "dapo": "ppo --config-name=recipes/dapo",
    "dr_grpo": "ppo --config-name=recipes/dr_grpo",
    **dict.fromkeys(("train", "rl", "fit", "run"), "ppo"),
    **dict.fromkeys(("finetune", "fine_tune"), "sft"),
    **dict.fromkeys(("reward", "reward_model"), "rm"),
    **dict.fromkeys(("generation", "infer", "inference", "rollout", "sample"), "generate"),
    **dict.fromkeys(("evaluate", "evaluation", "test", "score"), "eval"),
    **dict.fromkeys(("merge", "convert", "save"), "export"),
    **dict.fromkeys(("list", "ps"), "runs"),
    **dict.fromkeys(("profile", "timeline"), "trace"),
    **dict.fromkeys(("index", "search"), "retriever"),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `burnish` script; returns the exit code."""
    return guard(dispatch, list(sys.argv[1:] if argv is None else argv))


def dispatch(argv: list[str]) -> int | None:
    if argv[:1] == [DEBUG]:  # `burnish --debug ppo …` is `burnish ppo … --debug`
        argv = [*argv[1:], DEBUG] if argv[1:] else []
    if argv == ["--version"]:
        print_text(f"burnish {__version__}")
        return 0
    typed, commands, chosen = ["burnish"], COMMANDS, None
    while commands:
        name, argv = (argv[0], argv[1:]) if argv else (HELP[0], [])
        if name in (*HELP, "help"):
            print_text(overview() if chosen is None else overview_of(" ".join(typed), chosen))
            return 0
        typed.append(name)
        if name not in commands:
            meant = MEANT.get(name.lower().replace("-", "_")) if commands is COMMANDS else None
            near = meant or nearest(name, commands)
            hint = f"Did you mean `{' '.join([*typed[:-1], near])}`? " if near else ""
            raise ConfigError(f"unknown command: {' '.join(typed)}. {hint}Available: {', '.join(commands)}")
        chosen = commands[name]
        commands = dict(chosen.parts)
    assert chosen is not None
    if keys := KEY_COMMANDS.get(typed[1]):
        return keys.run(chosen.load, argv)
    with importing():
        command = chosen.load()
    code: int | None = command(argv)
    return code


def overview() -> str:
    return f"""\
burnish: reinforcement learning for language models

usage: burnish <command> …

a first run:
  burnish ppo {" ".join(KEY_COMMANDS["ppo"].example)}

its keys to begin with (default in brackets):
{first_keys()}

commands:
{lines(COMMANDS)}

Runs take keys: key=value. The other commands take what they read first, then flags: --flag value, or flag=value.
`burnish ppo --help` lists its keys, `burnish ppo --help rollout` those of one section.
`--debug` shows a traceback with an error; `--version` prints the version."""


def overview_of(name: str, group: CliCommand) -> str:
    examples = "\n".join(f"  {line}" for line in group.examples)
    commands = lines(group.parts)
    return f"usage: {name} <command> …\n\ncommands:\n{commands}\n\nexamples:\n{examples}\n\n{group.more}"


def lines(commands: Mapping[str, CliCommand]) -> str:
    width = max(map(len, commands)) + 2
    return "\n".join(f"  {name:<{width}}{command.summary}" for name, command in commands.items())


if __name__ == "__main__":
    leave(main())
