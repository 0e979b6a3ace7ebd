"""`burnish <command> …`: the table of commands, and nothing that a command needs.

Consumes the command line; hands the rest of it to the command's own `main(argv)`, imported when it is called. What
users type after `ppo`, `sft`, `rm`, `generate` and `eval` is Hydra's grammar, read by `burnish/config`; the other
commands have flags (`cli/arguments.py`).
"""

import difflib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

from burnish import __version__
from burnish.cli.errors import DEBUG, guard
from burnish.errors import ConfigError, NotAvailable

HELP = ("-h", "--help")
PLAN = "--plan              print the derived batch sizes and the memory they take, and stop"
COUNT = "--plan              print how many examples, tokens and steps there are, and stop"


@dataclass(frozen=True)
class Command:
    """What `burnish --help` says of a command, and where it is. No `target`: the command is not available yet."""

    summary: str
    target: str | None = None  # module:function, called with the rest of the command line
    keys: str | None = None  # module:class of its configuration, where it has one
    example: tuple[str, ...] = ()  # keys of a command that shows how it is used
    flag: str = ""  # a flag of its own, as its help says it

    def load(self) -> Callable[[list[str]], int | None]:
        assert self.target is not None
        module, _, function = self.target.partition(":")
        run: Callable[[list[str]], int | None] = getattr(importlib.import_module(module), function)
        return run


COMMANDS = {
    "quickstart": Command("a small model learns by RL, here, in minutes", "burnish.cli.quickstart:main"),
    "ppo": Command(
        "RL training, every algorithm",
        "burnish.trainer.main_ppo:main",
        "burnish.config.ppo:PPOConfig",
        (
            "algorithm.adv_estimator=grpo",
            "data.train_files=train.parquet",
            "data.val_files=test.parquet",
            "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct",
        ),
        PLAN,
    ),
    "sft": Command(
        "supervised fine-tuning",
        "burnish.trainer.sft_trainer:main",
        "burnish.config.sft:SFTConfig",
        ("data.train_files=train.parquet", "model.path=Qwen/Qwen2.5-0.5B-Instruct"),
        COUNT,
    ),
    "rm": Command(
        "reward-model training on chosen and rejected answers",
        "burnish.trainer.rm_trainer:main",
        "burnish.config.rm:RMConfig",
        ("data.train_files=pairs.parquet", "data.val_files=test.parquet", "model.path=Qwen/Qwen2.5-0.5B-Instruct"),
        COUNT,
    ),
    "generate": Command(
        "responses to the prompts of a file",
        "burnish.trainer.main_generation:main",
        "burnish.config.generation:GenerationConfig",
        ("data.path=test.parquet", "data.output_path=out.parquet", "model.path=Qwen/Qwen2.5-0.5B-Instruct"),
    ),
    "eval": Command(
        "scores of a file of responses, per data source",
        "burnish.trainer.main_eval:main",
        "burnish.config.evaluation:EvalConfig",
        ("data.path=out.parquet",),
        "--fail-under X      exit with 1 where the mean score of a data source is below X",
    ),
    "export": Command("checkpoint to Hugging Face folder", "burnish.cli.export:main"),
    "chat": Command("talk to a model or checkpoint in the terminal", "burnish.cli.chat:main"),
    "serve": Command("a model or checkpoint behind an OpenAI-compatible endpoint", "burnish.cli.serve:main"),
    "data": Command("make, check and show datasets", "burnish.cli.data:main"),
    "status": Command("what a run is doing and waits for, or did", "burnish.cli.status:main"),
    "replay": Command("an update that was NaN or infinite, run again", "burnish.cli.replay:main"),
    "retriever": Command("index and search passages, and serve them to the search agent", "burnish.cli.retriever:main"),
    "dashboard": Command("runs and trajectories in a browser"),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point of the `burnish` script; returns the exit code."""
    return guard(dispatch, list(sys.argv[1:] if argv is None else argv))


def dispatch(argv: list[str]) -> int | None:
    # `burnish --debug ppo …` is `burnish ppo … --debug`.
    leading = argv[:1] == [DEBUG]
    name, rest = (argv[leading], argv[leading + 1 :]) if len(argv) > leading else ("--help", [])
    rest = [*rest, DEBUG] if leading else rest
    if name in (*HELP, "help"):
        print(overview())
        return 0
    if name == "--version":
        print(f"burnish {__version__}")
        return 0
    command = find(name)
    if command.target is None:
        raise NotAvailable(f"burnish {name} ({command.summary})", f"There are: {', '.join(available())}")
    if command.keys and any(word in HELP for word in rest):
        from burnish.cli.help import explain

        words = [word for word in rest if not word.startswith("-")]
        print(explain(name, command.summary, command.keys, words, command.example, command.flag))
        return 0
    return command.load()(rest)


def find(name: str) -> Command:
    """The command of that name; ConfigError with the nearest one if there is none."""
    if name in COMMANDS:
        return COMMANDS[name]
    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"Did you mean `burnish {near[0]}`? " if near else ""
    raise ConfigError(f"no such command: {name}. {hint}`burnish --help` lists them")


def available() -> list[str]:
    return [name for name, command in COMMANDS.items() if command.target]


def overview() -> str:
    """The text of `burnish --help`."""
    width = max(map(len, COMMANDS)) + 2
    now = [f"  {name:<{width}}{c.summary}" for name, c in COMMANDS.items() if c.target]
    later = [f"  {name:<{width}}{c.summary}" for name, c in COMMANDS.items() if not c.target]
    return "\n".join(
        [
            "burnish: reinforcement learning for language models",
            "",
            "usage: burnish <command> [key=value …]",
            "",
            "commands:",
            *now,
            "",
            "not available yet:",
            *later,
            "",
            "`burnish ppo --help` lists its keys, `burnish ppo --help rollout` those of a part.",
            "`--debug` shows a traceback with an error; `--version` the version.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
