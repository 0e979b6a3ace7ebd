"""GSM8K as train.parquet and test.parquet.

    python3 examples/data_preprocess/gsm8k.py --local_dir ~/data/gsm8k [--local_dataset_path FOLDER]

is `burnish data make gsm8k`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("gsm8k"))
