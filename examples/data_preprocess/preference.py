"""Preference pairs as train.parquet and test.parquet.

    python3 examples/data_preprocess/preference.py --local_dir ~/data/preference [--local_dataset_path FOLDER]

is `burnish data make preference`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("preference"))
