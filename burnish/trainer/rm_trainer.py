"""`python3 -m burnish.trainer.rm_trainer key=value …`, in short `burnish rm`: training of a reward model."""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


from burnish.config import RM, Loaded, RMConfig, finalise_rm, run
from burnish.entry.ending import importing
from burnish.entry.keys import run_program


def main(argv: list[str]) -> None:
    run(argv, RM, finalise_rm, _train)


def _train(loaded: Loaded[RMConfig]) -> None:
    with importing():
        from burnish.trainer import supervised
        from burnish.trainer.rm import Preferences  # torch only once the keys are known to be right
    supervised.run(loaded, Preferences)


if __name__ == "__main__":
    run_program("rm", main)
