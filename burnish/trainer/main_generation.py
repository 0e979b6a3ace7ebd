"""`python3 -m burnish.trainer.main_generation key=value …`, in short `burnish generate`: responses to prompts."""

import sys

from burnish.cli.main import main as burnish
from burnish.config import GENERATION, GenerationConfig, Loaded, finalise_generation, run
from burnish.errors import ConfigError


def main(argv: list[str]) -> int:
    """Run every job of the command line."""
    return run(argv, GENERATION, finalise_generation, _generate)


def _generate(loaded: Loaded[GenerationConfig]) -> None:
    if loaded.flags.plan:
        raise ConfigError("--plan is about training steps, and burnish generate has none; leave it out")
    from burnish.trainer.generation import generate  # torch only once the keys are known to be right

    generate(loaded)


if __name__ == "__main__":
    sys.exit(burnish(["generate", *sys.argv[1:]]))
