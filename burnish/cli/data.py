"""`burnish data make|check|show`."""

from burnish.cli.group import Group

GROUP = Group(
    "data",
    {
        "make": "rows to train on, from a known dataset, your files, or a seed",
        "check": "what is in a file, and what is wrong with it",
        "show": "rows as a person reads them",
    },
    (
        "burnish data make gsm8k --out data/gsm8k",
        "burnish data check data/gsm8k/train.parquet data/gsm8k/test.parquet",
        "burnish data show data/gsm8k/test.parquet",
    ),
    "`burnish data make --help` lists the tasks; every command has --help.",
)
main = GROUP.main
