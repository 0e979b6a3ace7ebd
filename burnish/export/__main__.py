"""`python3 -m burnish.export SOURCE --out FOLDER`, in short `burnish export`."""

import sys

from burnish.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["export", *sys.argv[1:]]))
