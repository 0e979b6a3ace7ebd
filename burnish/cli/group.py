"""Commands of commands, as `burnish data make|check|show`: which one is meant, and nothing that they need."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

from burnish.config.nearest import nearest
from burnish.errors import ConfigError


@dataclass(frozen=True)
class Group:
    """`burnish NAME COMMAND`, which is `main(argv)` of `burnish/cli/NAME_COMMAND.py`."""

    name: str
    commands: Mapping[str, str]  # and what each does, in a line
    examples: tuple[str, ...]
    more: str = "Every command has --help."

    def main(self, argv: list[str]) -> int | None:
        """Hands the rest of the command line to the command's own `main(argv)`."""
        name, rest = (argv[0], argv[1:]) if argv else ("--help", [])
        if name in ("-h", "--help", "help"):
            print(self.overview())
            return 0
        if name not in self.commands:
            near = nearest(name, self.commands)
            hint = f"did you mean `burnish {self.name} {near}`? " if near else ""
            raise ConfigError(
                f"no such command: burnish {self.name} {name}; {hint}There are: {', '.join(self.commands)}"
            )
        code: int | None = importlib.import_module(f"burnish.cli.{self.name}_{name}").main(rest)
        return code

    def overview(self) -> str:
        """The text of `burnish NAME --help`."""
        return "\n".join(
            [
                f"usage: burnish {self.name} <command> …",
                "",
                "commands:",
                *[f"  {name:<8}{summary}" for name, summary in self.commands.items()],
                "",
                "examples:",
                *[f"  {line}" for line in self.examples],
                "",
                self.more,
            ]
        )
