"""`python3 -m burnish.trainer.rm_trainer key=value …`, in short `burnish rm`, which says that it is not there yet."""

import sys

from burnish.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["rm", *sys.argv[1:]]))
