"""`burnish data make|check|show`: which of the three, and nothing that they need."""

import importlib

from burnish.config.nearest import nearest
from burnish.errors import ConfigError

COMMANDS = {
    "make": ("rows to train on, from a known dataset, your files, or a seed", "burnish.cli.data_make"),
    "check": ("what is in a file, and what is wrong with it", "burnish.cli.data_check"),
    "show": ("rows as a person reads them", "burnish.cli.data_show"),
}
EXAMPLES = (
    "burnish data make gsm8k --out data/gsm8k",
    "burnish data check data/gsm8k/train.parquet data/gsm8k/test.parquet",
    "burnish data show data/gsm8k/test.parquet",
)


def main(argv: list[str]) -> int | None:
    """Hands the rest of the command line to the command's own `main(argv)`."""
    name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if name in ("-h", "--help", "help"):
        print(overview())
        return 0
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f"did you mean `burnish data {near}`? " if near else ""
        raise ConfigError(f"no such command: burnish data {name}; {hint}There are: {', '.join(COMMANDS)}")
    code: int | None = importlib.import_module(COMMANDS[name][1]).main(rest)
    return code


def overview() -> str:
    """The text of `burnish data --help`."""
    commands = [f"  {name:<8}{summary}" for name, (summary, _) in COMMANDS.items()]
    examples = [f"  {line}" for line in EXAMPLES]
    return "\n".join(
        [
            "usage: burnish data <command> …",
            "",
            "commands:",
            *commands,
            "",
            "examples:",
            *examples,
            "",
            "`burnish data make --help` lists the tasks; every command has --help.",
        ]
    )
