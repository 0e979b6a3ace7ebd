"""`python3 -m burnish.trainer.main_ppo key=value …`, in short `burnish ppo`: RL training, every algorithm."""

import sys

from burnish.cli.main import main as burnish
from burnish.config.load import PPO, Loaded, run
from burnish.config.ppo import PPOConfig


def main(argv: list[str]) -> None:
    """Run every job of the command line."""
    run(argv, PPO, _task)


def _task(loaded: Loaded[PPOConfig]) -> None:
    from burnish.trainer.setup import run as run_job  # torch only once the command line is known to be right

    run_job(loaded)


if __name__ == "__main__":
    sys.exit(burnish(["ppo", *sys.argv[1:]]))
