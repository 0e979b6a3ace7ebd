"""Questions about invented people, for the search agent: the answers cannot be known and have to be looked up.

A seed makes a world of facts, as documents for the retrieval server (`corpus`) and as questions (`rows`). Test
questions are about people of whom no training question is asked. Half of all names, picked by a hash, are kept for
worlds (`NEW`); demonstrations use the other half (`TAUGHT`), so that no world has a name that the model has seen.
"""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from burnish.data.files import Row
from burnish.data.tasks.task import GeneratedTask, Option, Options, check_split, rl_row
from burnish.errors import DataError

DATA_SOURCE = "searchR1_facts"  # of the family that the exact-match scorer reads
RELATIONS = ("teacher", "rival", "friend", "guard")
PEOPLE = {"train": 192, "test": 64}  # of a world
BEGINNINGS = tuple(
    "Ar Bel Bor Cal Cor Dan Dor Ed Fal Fen Gar Gol Har Hil Ir Jor Kal Kor Lan Lor Mal Mor Nar Or Pel Rin Sel Tal Ul "
    "Val Wen Zan".split()
)
ENDINGS = tuple(
    "ba bin by da den dy fa fin ga gus ka kin la lis ma mir na nor pa pin ra ris sa sen ta tis va vik wa win "
    "za zo".split()
)
NAMES = tuple(beginning + ending for beginning in BEGINNINGS for ending in ENDINGS)


@dataclass(frozen=True)
class Fact:
    person: str
    relation: str
    answer: str

    @property
    def question(self) -> str:
        return f"Who is the {self.relation} of {self.person}?"

    @property
    def query(self) -> str:
        return f"{self.relation} of {self.person}"

    @property
    def document(self) -> str:
        return f'"{self.person}"\nThe {self.relation} of {self.person} is {self.answer}.'


NEW = tuple(name for name in NAMES if hashlib.sha256(name.encode()).digest()[0] % 2 == 0)
TAUGHT = tuple(name for name in NAMES if name not in set(NEW))


def facts(people: Sequence[str], names: Sequence[str], draw: random.Random) -> list[Fact]:
    return [
        Fact(person, relation, draw.choice([name for name in names if name != person]))
        for person in people
        for relation in RELATIONS
    ]


def world(seed: int) -> dict[str, list[Fact]]:
    """The facts of a world, by the split that asks about them, in random order."""
    draw = random.Random(f"{DATA_SOURCE}/{seed}")
    people = draw.sample(NEW, sum(PEOPLE.values()))
    found = {}
    for split, count in PEOPLE.items():
        found[split] = facts(people[:count], NEW, draw)
        draw.shuffle(found[split])
        people = people[count:]
    return found


def corpus(seed: int) -> list[dict[str, str]]:
    documents = [fact.document for part in world(seed).values() for fact in part]
    return [{"id": str(i), "contents": contents} for i, contents in enumerate(documents)]


def write_corpus(seed: int, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(document) + "\n" for document in corpus(seed)), encoding="utf-8")
    return path


def rows(split: str, count: int, seed: int) -> list[Row]:
    check_split(split)
    known = world(seed)[split]
    if count > len(known):
        few = f"a world has {len(known)}: ask for fewer (--{split}-size)"
        raise DataError(f"{count} {split} questions are asked for; {few}")
    return [
        rl_row(DATA_SOURCE, "fact-reasoning", f.question, {"target": [f.answer]}, f.question, split=split, index=index)
        for index, f in enumerate(known[:count])
    ]


def generate(split: str, count: int, seed: int, options: Options) -> list[Row]:
    if options["corpus"]:
        write_corpus(seed, Path(options["corpus"]))
    return rows(split, count, seed)


TASK = GeneratedTask(
    about=f"Invented people and their {', '.join(RELATIONS[:-1])} and {RELATIONS[-1]}: every seed is another world. "
    "The reward compares the last <answer> with the right name.",
    generate=generate,
    options=(Option("corpus", "", "JSONL file to write the documents of this seed to, for `burnish retriever index`"),),
    example="--seed 1 --train-size 768 --test-size 256 --corpus corpus.jsonl",
)
