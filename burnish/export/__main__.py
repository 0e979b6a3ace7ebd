"""`python3 -m burnish.export SOURCE --out FOLDER`, in short `burnish export`."""

import sys

from burnish.entry.ending import leave
from burnish.entry.guard import guard
from burnish.export.command import main

if __name__ == "__main__":
    leave(guard(main, sys.argv[1:]))
