"""The kill campaign, `make test-kill N=200`: kills at random moments over all kinds of run, and whether the runs end as
if never killed. A line for each kill, then a table. `--only grpo/3` with the same seed repeats one series. Exit code 1
if anything is wrong; the folders of such series stay."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.trainer.kills.campaign import Campaign
from tests.trainer.kills.kinds import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="how many, over all kinds [200]")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is drawn [1]")
    parser.add_argument("--only", nargs="+", default=list(KINDS), metavar="KIND[/SERIES]", help=", ".join(KINDS))
    options = parser.parse_args()
    if unknown := [name for name in options.only if name.partition("/")[0] not in KINDS]:
        parser.error(f"--only: no kind {unknown[0]}; there are {', '.join(KINDS)}")
    began, place = time.monotonic(), Path(tempfile.mkdtemp(prefix="kills-"))
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_TMPDIR": str(place)}
    with Campaign(place, options.seed, lambda line: print(line, flush=True)) as campaign:
        total = campaign.run(options.kills, options.only)
        print(*campaign.summary(), sep="\n")
    wrong = campaign.wrong
    print(f"{total} kills in {time.monotonic() - began:.0f} s, seed {options.seed}; wrong: {len(wrong)}")
    if wrong:
        sys.exit("\n".join([*wrong, f"the folders are in {place}"]))
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
