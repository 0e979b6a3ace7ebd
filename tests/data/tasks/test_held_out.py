import itertools
import random

import pytest

from burnish.data.tasks.held_out import distinct, keep_apart, mark, split_of
from burnish.errors import DataError


def ask(text: str, **columns) -> dict:
    return {"prompt": [{"role": "user", "content": text}], "extra_info": {}} | columns


ROWS = [ask(f"question {i}") for i in range(200)]


def contents(rows):
    return [row["prompt"][0]["content"] for row in rows]


def test_the_part_kept_apart_does_not_depend_on_the_order():
    train, test = keep_apart(ROWS, 20)
    assert (len(train), len(test)) == (180, 20)
    assert contents(train) == [text for text in contents(ROWS) if text not in contents(test)], "order is kept"
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    assert set(contents(keep_apart(shuffled, 20)[1])) == set(contents(test))


def test_equal_questions_fall_on_the_same_side_and_change_nothing_for_others():
    _, test = keep_apart(ROWS, 20)
    again = [ask(f"  Question\n{i} ") for i in range(0, 200, 3)]
    train, more = keep_apart([*ROWS, *again], 20)
    marks = {mark(row) for row in test}
    assert {mark(row) for row in more} == marks and not marks & {mark(row) for row in train}
    assert len(more) > 20


def test_a_smaller_part_is_within_a_larger_one():
    assert set(contents(keep_apart(ROWS, 10)[1])) < set(contents(keep_apart(ROWS, 20)[1]))


def test_pictures_tell_equal_texts_apart():
    rows = [ask("Find x.", images=[{"bytes": bytes([i]), "path": None}]) for i in range(9)]
    rows += [
        ask("Find x.", images=[{"bytes": None, "path": "a.png"}]),
        ask("Find x.", images=["b.png"]),
        ask("Find x."),
    ]
    assert len({mark(row) for row in rows}) == 12
    assert len(keep_apart(rows, 3)[1]) == 3


@pytest.mark.parametrize("count", [200, 500])
def test_a_part_as_large_as_the_file(count):
    with pytest.raises(DataError, match=f"--test-size {count} leaves nothing to train on: there are 200 different"):
        keep_apart(ROWS, count)


def test_one_made_question_in_ten_is_a_test_question_for_good():
    splits = [split_of(str(i)) for i in range(3000)]
    assert 220 < splits.count("test") < 380
    assert [i for i in range(40) if splits[i] == "test"] == [0, 7, 9, 10, 33]


def test_distinct_takes_the_first_of_each_question():
    drawn = [(str(i % 50), i) for i in range(10_000)]
    found = distinct("train", 20, drawn)
    assert list(found) == [i for i in range(50) if split_of(str(i)) == "train"][:20]


def test_distinct_stops_where_nothing_new_comes():
    with pytest.raises(
        DataError, match=r"only 1 of 2 different train questions .*ask for fewer \(--train-size\) or widen"
    ):
        list(distinct("train", 2, itertools.repeat(("1", 1))))
    with pytest.raises(DataError, match="split 'dev' does not exist; use one of train, test"):
        list(distinct("dev", 2, itertools.repeat(("1", 1))))
