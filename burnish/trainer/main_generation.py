"""`python3 -m burnish.trainer.main_generation …`, in short `burnish generate`, which says that it is not there yet."""

import sys

from burnish.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["generate", *sys.argv[1:]]))
