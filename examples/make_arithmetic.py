"""Write the files that the other examples train on: `python3 examples/make_arithmetic.py [folder]`.

train.parquet and test.parquet hold questions with their right answers (`burnish ppo`), sft.parquet holds worked
answers (`burnish sft`). Test questions are never among the others: a hash of the question decides.
"""

import sys
from pathlib import Path

from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic


def main(folder: Path) -> None:
    write_parquet(arithmetic.rows("train", 512), folder / "train.parquet")
    write_parquet(arithmetic.rows("test", 64), folder / "test.parquet")
    worked = [arithmetic.sft_row(*q, arithmetic.scratchpad(*q)) for q in arithmetic.questions("train", 512, seed=1)]
    write_parquet(worked, folder / "sft.parquet")
    print(f"wrote train, test and sft.parquet to {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "data/arithmetic"))
