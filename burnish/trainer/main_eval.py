"""`python3 -m burnish.trainer.main_eval key=value …`, in short `burnish eval`, which says that it is not there yet."""

import sys

from burnish.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
