"""Countdown puzzles from a seed as train.parquet and test.parquet.

    python3 examples/data_preprocess/countdown.py --local_dir ~/data/countdown

is `burnish data make countdown`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("countdown"))
