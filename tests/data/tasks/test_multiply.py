import pytest

from burnish.data.tasks.multiply import TASK
from burnish.errors import ConfigError, DataError


def made(split, count, seed, digits="3"):
    return TASK.generate(split, count, seed, {"digits": digits})


def factors(row):
    return row["extra_info"]["a"], row["extra_info"]["b"]


def test_rows():
    for row in made("train", 50, 0, "3x2"):
        a, b = factors(row)
        assert 100 <= a <= 999 and 10 <= b <= 99
        assert row["prompt"][0]["content"].startswith(f"What is {a} * {b}? ")
        assert row["reward_model"]["ground_truth"] == str(a * b)
        assert row["extra_info"]["answer"] == f"<answer>{a * b}</answer>"
        assert row["data_source"] == "multiply"


def test_splits_never_share_a_product_nor_its_twin():
    train = {tuple(sorted(factors(row))) for seed in (1, 2) for row in made("train", 1500, seed, "2")}
    test = {tuple(sorted(factors(row))) for seed in (1, 3) for row in made("test", 200, seed, "2")}
    assert len(train) > 1500 and len(test) > 200 and not train & test


def test_rows_follow_from_the_seed():
    assert made("test", 20, 4) == made("test", 20, 4) != made("test", 20, 5)
    assert [factors(row) for row in made("test", 3, 1)] == [(243, 835), (776, 127), (969, 829)]


def test_more_questions_than_there_are():
    with pytest.raises(DataError, match=r"only \d+ of 100 different train questions could be found .*\(--train-size\)"):
        made("train", 100, 0, "1")


@pytest.mark.parametrize("typed", ["0", "x", "3x", "3x0", "10"])
def test_digits_that_cannot_be_read(typed):
    with pytest.raises(ConfigError, match=f"--digits {typed}: write the digits of both numbers, 1 to 9, e.g. 3 or 3x2"):
        made("train", 1, 0, typed)
