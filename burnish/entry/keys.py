"""The commands that are configured by keys, as their help describes them, and how one is run as a program."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from burnish.entry.guard import guard

HELP = ("-h", "--help")
PLAN = "--plan              print the derived batch sizes and the memory they take, and stop"
COUNT = "--plan              print how many examples, tokens and steps there are, and stop"
MODEL = "model.path=Qwen/Qwen2.5-0.5B-Instruct"


@dataclass(frozen=True)
class KeyCommand:
    """One command: its `--help` needs nothing else."""

    name: str
    summary: str
    config: str  # module:class of its configuration
    example: tuple[str, ...]  # keys of a command that works
    flag: str = ""  # its own flag and what it does, as a line of the help

    def answers_help(self, argv: list[str]) -> bool:
        """Print the help if the command line asks for it: `--help [words] [all]`."""
        if not any(word in HELP for word in argv):
            return False
        from burnish.entry.keys_help import explain

        print(explain(self, [word for word in argv if not word.startswith("-")]))
        return True


KEY_COMMANDS = {
    command.name: command
    for command in (
        KeyCommand(
            "ppo",
            "RL training, every algorithm",
            "burnish.config.ppo:PPOConfig",
            (
                "algorithm.adv_estimator=grpo",
                "data.train_files=train.parquet",
                "data.val_files=test.parquet",
                f"actor_rollout_ref.{MODEL}",
            ),
            PLAN,
        ),
        KeyCommand(
            "sft",
            "supervised fine-tuning",
            "burnish.config.sft:SFTConfig",
            ("data.train_files=train.parquet", MODEL),
            COUNT,
        ),
        KeyCommand(
            "rm",
            "reward-model training on chosen and rejected answers",
            "burnish.config.rm:RMConfig",
            ("data.train_files=pairs.parquet", "data.val_files=test.parquet", MODEL),
            COUNT,
        ),
        KeyCommand(
            "generate",
            "sample responses to the prompts of a file",
            "burnish.config.generation:GenerationConfig",
            ("data.path=test.parquet", "data.output_path=out.parquet", MODEL),
        ),
        KeyCommand(
            "eval",
            "score a file of responses, per data source",
            "burnish.config.evaluation:EvalConfig",
            ("data.path=out.parquet",),
            "--fail-under X      exit with 1 if the mean score of a data source is below X",
        ),
    )
}


def run_program(name: str, main: Callable[[list[str]], int | None]) -> NoReturn:
    """`python3 -m burnish.trainer.X …`: the same as `burnish NAME …`; `main` takes the command line."""
    command = KEY_COMMANDS[name]
    sys.exit(guard(lambda argv: 0 if command.answers_help(argv) else main(argv), sys.argv[1:]))
