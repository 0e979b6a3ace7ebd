"""`python -m verl.trainer.fsdp_sft_trainer key=value …` is `burnish sft key=value …`. Under torchrun the first process
trains, and the others end."""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


import os
import sys
from typing import NoReturn

from burnish.entry.keys import run_program
from burnish.trainer import sft_trainer


def main() -> NoReturn:
    if int(os.environ.get("RANK", "0")) > 0:
        sys.exit(0)
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        sys.stderr.write(f"burnish sft trains in one process; the other {processes - 1} of torchrun end\n")
    run_program("sft", sft_trainer.main)


if __name__ == "__main__":
    main()
