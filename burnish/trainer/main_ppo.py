"""`python3 -m burnish.trainer.main_ppo key=value …`, in short `burnish ppo`: RL training, every algorithm."""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


from burnish.algorithms.needs import needs_of
from burnish.config import PPO, Loaded, PPOConfig, finalise, run
from burnish.entry.ending import importing
from burnish.entry.keys import run_program
from burnish.trainer import nsys, restart


def main(argv: list[str]) -> None:
    restart.prepare(argv)
    run(argv, PPO, finish, _train)


def finish(config: PPOConfig, explicit: frozenset[str]) -> list[str]:
    return finalise(config, explicit, needs_of(config))


def _train(loaded: Loaded[PPOConfig]) -> None:
    if not restart.is_finished(loaded.config):
        if not loaded.flags.plan:
            nsys.enter(loaded.config)
        with importing():
            from burnish.trainer import setup  # torch only once the keys are known to be right
        setup.run(loaded)


if __name__ == "__main__":
    run_program("ppo", main)
