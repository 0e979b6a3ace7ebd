"""MATH as train.parquet and test.parquet.

    python3 examples/data_preprocess/math_dataset.py --local_dir ~/data/math [--local_dataset_path FOLDER]

is `burnish data make math`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("math"))
