"""Geometry3K for an agent with an answer checker as train.parquet and test.parquet.

    python3 examples/data_preprocess/geo3k_multiturn_w_tool.py --local_dir ~/data/geo3k_tool

is `burnish data make geo3k_tool`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("geo3k_tool"))
