"""`python3 -m burnish.trainer.main_ppo key=value …`, in short `burnish ppo`: RL training, every algorithm."""

import sys

from burnish.algorithms.needs import needs_of
from burnish.cli.main import main as burnish
from burnish.config import PPO, Loaded, PPOConfig, finalise, run
from burnish.trainer import restart


def main(argv: list[str]) -> None:
    """Run every job of the command line."""
    restart.prepare(argv)
    run(argv, PPO, _finish, _train)


def _finish(config: PPOConfig, explicit: frozenset[str]) -> list[str]:
    return finalise(config, explicit, needs_of(config))


def _train(loaded: Loaded[PPOConfig]) -> None:
    if not restart.is_finished(loaded.config):
        from burnish.trainer.setup import run as train  # torch only once the keys are known to be right

        train(loaded)


if __name__ == "__main__":
    sys.exit(burnish(["ppo", *sys.argv[1:]]))
