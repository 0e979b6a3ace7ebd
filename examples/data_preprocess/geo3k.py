"""Geometry3K as train.parquet and test.parquet.

    python3 examples/data_preprocess/geo3k.py --local_dir ~/data/geo3k [--local_dataset_path FOLDER]

is `burnish data make geo3k`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("geo3k"))
