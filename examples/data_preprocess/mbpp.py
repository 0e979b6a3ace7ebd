"""MBPP as train.parquet and test.parquet.

    python3 examples/data_preprocess/mbpp.py --local_dir ~/data/mbpp [--local_dataset_path FOLDER]

is `burnish data make mbpp`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("mbpp"))
