"""`python -m verl.trainer.main_ppo key=value …` is `burnish ppo key=value …`."""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


from typing import NoReturn

from burnish.entry.keys import run_program
from burnish.trainer import main_ppo


def main() -> NoReturn:
    """With the keys of the command line, for a program that first imports what it registers."""
    run_program("ppo", main_ppo.main)


if __name__ == "__main__":
    main()
