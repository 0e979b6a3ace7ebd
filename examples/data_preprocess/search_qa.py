"""Questions for the search agent as train.parquet and test.parquet.

    python3 examples/data_preprocess/search_qa.py --local_dir ~/data/search_qa [--local_dataset_path FOLDER]

is `burnish data make search_qa`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("search_qa"))
