"""`burnish data make TASK`: the flags, and a report of what was written and left out; `burnish/data/tasks` makes the
rows. Nothing is written before all rows are made. `script` is all of a program in examples/data_preprocess."""

import argparse
import os
import shlex
import sys
import textwrap
from pathlib import Path

from burnish.entry.arguments import FlagParser
from burnish.entry.guard import DEBUG, guard
from burnish.entry.keys import HELP
from burnish.errors import ConfigError, DataError
from burnish.literal import print_text

TRAIN_SIZE, TEST_SIZE = 10_000, 500
WIDTH = 100


def main(argv: list[str]) -> int:
    words = [word for word in argv if word != DEBUG]
    if not words or words[0] in (*HELP, "help"):
        print_text(overview())
        return 0
    if words[0].startswith("-"):
        raise ConfigError(f"burnish data make: name a task before {words[0]}; `burnish data make --help` lists them")
    make(words[0], parse(words[0], words[1:]))
    return 0


def make(name: str, typed: argparse.Namespace) -> None:
    from burnish.data.files import write_parquet
    from burnish.data.tasks import load
    from burnish.data.tasks.task import FileTask, from_files, generated

    task = load(name)
    options = {option.name: getattr(typed, option.name) for option in task.options}
    if isinstance(task, FileTask):
        targets = _targets(typed, typed.origin.splits(task.hub))
        splits = from_files(task, typed.origin, options | {"data_source": typed.data_source or task.data_source})
    else:
        targets = _targets(typed, list(typed.sizes))
        splits = generated(task, typed.sizes, typed.seed, options)
    for split, made in splits.items():
        write_parquet(made.rows, targets[split])
        skipped = f"; skipped: {made.reasons()}" if made.left_out else ""
        print_text(f"{targets[split]}: {len(made.rows)} rows{skipped}")
    print_text(f"next: burnish data check {shlex.join(map(str, targets.values()))}")


def parse(name: str, words: list[str]) -> argparse.Namespace:
    """The flags of a task, checked as far as possible without its files, with `origin` (where a task finds its records)
    or `sizes` (rows of each split; one of 0 rows is not made)."""
    from burnish.data.sources import Origin, renaming

    typed = parser(name).parse_args(words)
    if hasattr(typed, "source"):  # the task reads files
        names = ("train", "test", "source", "hub", "hub_config", "test_size")
        typed.origin = Origin(**{name: getattr(typed, name) for name in names}, rename=renaming(typed.rename))
    else:
        sizes = {"train": typed.train_size, "test": typed.test_size}
        for split, size in sizes.items():
            if size < 0:
                raise ConfigError(f"--{split}-size {size}: give a number of rows, 0 for none")
        if not any(sizes.values()):
            raise ConfigError("--train-size 0 --test-size 0 makes nothing: ask for some rows")
        typed.sizes = {split: size for split, size in sizes.items() if size}
    return typed


def parser(name: str) -> FlagParser:
    """The flags of a task: where rows go, where they come from, and its own."""
    from burnish.data.tasks import load
    from burnish.data.tasks.task import FileTask

    task = load(name)
    example = " ".join(filter(None, ("data make", name, task.example, f"--out data/{name}")))
    flags = FlagParser(f"data make {name}", describe(name), example)
    add = flags.add_argument
    add("--out", required=True, metavar="FOLDER", help="folder for train.parquet and test.parquet")
    add("--overwrite", action="store_true", help="replace existing files")
    if isinstance(task, FileTask):
        folder = "a folder with train.* and test.* (parquet, json, jsonl, json.gz, jsonl.gz)"
        add("--source", metavar="FOLDER", help=folder)
        add("--train", nargs="+", default=[], metavar="FILE", help="files of the train split")
        add("--test", nargs="+", default=[], metavar="FILE", help="files of the test split")
        add("--hub", metavar="ID", help=f"dataset on the Hugging Face hub, if no files are given [{task.hub.id}]")
        add("--hub-config", metavar="NAME", help=f"its configuration [{task.hub.config}]")
        held_out = "hold out N train questions as the test split (by a hash of the question); ignores another"
        add("--test-size", type=int, metavar="N", help=held_out)
        renamed = "read the file's column THEIRS as the column OURS above"
        add("--rename", action="append", default=[], metavar="THEIRS=OURS", help=renamed)
        shown = f" [{task.data_source}]" if task.data_source else ""
        add("--data-source", metavar="NAME", help=f"data_source of the rows, which picks the scorer{shown}")
    else:
        add("--train-size", type=int, default=TRAIN_SIZE, metavar="N", help=f"rows [{TRAIN_SIZE}]")
        add("--test-size", type=int, default=TEST_SIZE, metavar="N", help=f"rows [{TEST_SIZE}]")
        add("--seed", type=int, default=0, metavar="N", help="the same seed gives the same rows [0]")
    for option in task.options:
        flag = f"--{option.name.replace('_', '-')}"
        if isinstance(option.default, bool):
            add(flag, action="store_true", help=option.help)
        else:
            shown = f" [{option.default}]" if option.default != "" else ""
            kind = type(option.default)
            add(flag, type=kind, default=option.default, metavar="X", help=f"{option.help}{shown}")
    return flags


def describe(name: str) -> str:
    """The help of a task above its flags."""
    from burnish.data.tasks import TASKS, load
    from burnish.data.tasks.task import FileTask

    task = load(name)
    lines = [f"{name}: {TASKS[name]}", "", textwrap.fill(task.about, WIDTH)]
    if isinstance(task, FileTask):
        width = max(len("|".join(column.names)) for column in task.reads) + 2
        lines += ["", "columns it reads:"]
        lines += [f"  {'|'.join(column.names):<{width}}{column.meaning}" for column in task.reads]
    return "\n".join(lines)


def overview() -> str:
    from burnish.data.tasks import TASKS

    width = max(map(len, TASKS)) + 2
    tasks = "\n".join(f"  {name:<{width}}{summary}" for name, summary in TASKS.items())
    return f"""\
usage: burnish data make TASK --out FOLDER […]

Writes FOLDER/train.parquet and FOLDER/test.parquet with the rows that `burnish ppo` reads.

tasks:
{tasks}

examples:
  burnish data make gsm8k --out data/gsm8k
  burnish data make gsm8k --source ~/downloads/gsm8k --out data/gsm8k
  burnish data make math --train math_train.json --test-size 500 --out data/math
  burnish data make countdown --train-size 10000 --test-size 500 --seed 1 --out data/countdown

`burnish data make TASK --help` shows what a task reads, and its flags."""


def script(name: str) -> int:
    """A program that makes one task: --local_dir is --out, --local_dataset_path is --source, the rest as it is."""
    return guard(lambda argv: main(script_words(name, argv)), sys.argv[1:])


def script_words(name: str, argv: list[str]) -> list[str]:
    from burnish.data.tasks import load
    from burnish.data.tasks.task import FileTask

    flags = argparse.ArgumentParser(
        description=f"The same as `burnish data make {name}`, whose other flags it takes too.",
        epilog=f"example: python3 {sys.argv[0]} --local_dir ~/data/{name}",
        allow_abbrev=False,
    )
    flags.add_argument("--local_dir", default=f"~/data/{name}", help=f"folder for the files [~/data/{name}]")
    if isinstance(load(name), FileTask):
        flags.add_argument("--local_dataset_path", help="a folder with train.* and test.*, instead of the hub")
    typed, rest = flags.parse_known_args(argv)
    source = getattr(typed, "local_dataset_path", None)
    return [name, "--out", typed.local_dir, *(["--source", source] if source else []), *rest]


def _targets(typed: argparse.Namespace, splits: list[str]) -> dict[str, Path]:
    """The file of each split; DataError, before any work, if it cannot be written."""
    folder = Path(typed.out).expanduser()
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise DataError(f"--out {typed.out}: {nearest} is a file, not a folder; choose another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise DataError(f"--out {typed.out}: no permission to write in {nearest}; choose another folder")
    targets = {split: folder / f"{split}.parquet" for split in splits}
    there = [str(path) for path in targets.values() if path.exists()]
    if there and not typed.overwrite:
        raise DataError(f"already exists: {' and '.join(there)}; add --overwrite to replace, or choose another --out")
    return targets
