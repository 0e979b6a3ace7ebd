"""GSM8K for an agent with an answer checker as train.parquet and test.parquet.

    python3 examples/data_preprocess/gsm8k_multiturn_w_tool.py --local_dir ~/data/gsm8k_tool

is `burnish data make gsm8k_tool`, whose other flags it takes too.
"""

import sys

from burnish.cli.data_make import script

if __name__ == "__main__":
    sys.exit(script("gsm8k_tool"))
