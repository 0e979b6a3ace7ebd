"""Any task of the package reasoning-gym: puzzles made from a seed, each with its own verifier, whose input `extra_info`
has: the question, and the puzzle's metadata as JSON text. A row is returned only if the verifier accepts the package's
own answer with the metadata as stored."""

import contextlib
import hashlib
import importlib
import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

from burnish.config.nearest import nearest
from burnish.data.files import Row
from burnish.data.tasks.task import GeneratedTask, Option, Options, distinct, rl_row
from burnish.errors import ConfigError, DataError, install_command

INSTRUCTION = "Think first; then write the answer alone, in the form asked for, between <answer> and </answer>."
CHUNK = 500
Puzzle = tuple[Any, dict[str, Any]]  # the package's dataset, which can verify, and one entry of it
_NEEDS_MORE = {"composite"}  # mixes other tasks, and asks for their configurations


def generate(split: str, count: int, seed: int, options: Options) -> list[Row]:
    """As many of each task as the count allows, taken in turns."""
    known = sorted(set(_factory().DATASETS) - _NEEDS_MORE)
    names = list(dict.fromkeys(name.strip() for name in options["tasks"].split(",") if name.strip()))
    if not names:
        example = "name tasks of reasoning-gym, e.g. --tasks chain_sum,leg_counting"
        raise ConfigError(f"{example}; there are: {', '.join(known)}")
    for name in names:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
            raise ConfigError(f"--tasks {name}: reasoning-gym has no such task; {hint}")
    shares = [count // len(names) + (i < count % len(names)) for i in range(len(names))]
    # Some puzzles run programs that print.
    with contextlib.redirect_stdout(io.StringIO()):
        drawn = [
            [make_row(name, dataset, entry) for dataset, entry in distinct(split, share, _draw(name, seed))]
            for name, share in zip(names, shares, strict=True)
            if share
        ]
    return [row for turn in itertools.zip_longest(*drawn) for row in turn if row is not None]


def _factory() -> Any:
    try:
        return importlib.import_module("reasoning_gym.factory")
    except ImportError as exc:
        said = f"the package reasoning-gym is not installed ({exc})"
        raise ConfigError(f"{said}: {install_command('reasoning-gym')}") from exc


def _draw(name: str, seed: int) -> Iterator[tuple[str, Puzzle]]:
    """An endless stream of puzzles. The package seeds item i with seed + i, so seeds must lie far apart to differ."""
    factory = _factory()
    for chunk in itertools.count():
        digest = hashlib.sha256(f"reasoning_gym/{name}/{seed}/{chunk}".encode()).digest()
        dataset = factory.create_dataset(name, seed=int.from_bytes(digest[:4], "big") >> 1, size=CHUNK)
        for i in range(CHUNK):
            entry = dataset[i]
            yield entry["question"], (dataset, entry)


def make_row(name: str, dataset: Any, entry: dict[str, Any]) -> Row:
    """A puzzle as a row; DataError where its verifier would refuse its own answer once the metadata is JSON."""
    question, answer = entry["question"], entry["answer"]
    metadata = json.dumps(entry["metadata"], default=str, ensure_ascii=False)
    if answer is not None and dataset.score_answer(answer, entry | {"metadata": json.loads(metadata)}) < 1:
        raise DataError(
            f"--tasks {name}: its verifier refuses its own answer once the metadata is stored as JSON, so rows could "
            "not be scored later; leave this task out"
        )
    worked = None if answer is None else f"<answer>{answer}</answer>"
    prompt = f"{question}\n\n{INSTRUCTION}"
    return rl_row(f"reasoning_gym/{name}", "logic", prompt, answer, question, worked, task=name, metadata=metadata)


TASK = GeneratedTask(
    about="Over a hundred kinds of puzzles: algebra, logic, graphs, games. The reward is the package's own verifier.",
    generate=generate,
    options=(Option("tasks", "", "names of the package's tasks, with commas between; required"),),
    example="--tasks chain_sum,leg_counting --train-size 5000 --test-size 200",
)
