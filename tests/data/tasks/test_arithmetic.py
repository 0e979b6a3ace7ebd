import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.config.data import DataConfig
from burnish.data.dataset import RLDataset
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.errors import DataError

NUMBERS = st.integers(100, 999)


@st.composite
def questions(draw):
    a, b, op = draw(NUMBERS), draw(NUMBERS), draw(st.sampled_from("+-"))
    return (max(a, b), op, min(a, b)) if op == "-" else (a, op, b)


def test_a_sum_and_a_difference_worked_out():
    assert arithmetic.scratchpad(347, "+", 586) == "7+6+0=3,1\n4+8+1=3,1\n3+5+1=9,0\n=0933\nanswer: 933"
    assert arithmetic.scratchpad(523, "-", 519) == "3-9-0=4,1\n2-1-1=0,0\n5-5-0=0,0\n=0004\nanswer: 4"


@given(questions())
@settings(deadline=None)
def test_the_scratchpad_is_right_and_of_one_length(parts):
    text = arithmetic.scratchpad(*parts)
    *lines, copied, answer = text.split("\n")
    assert answer == f"answer: {arithmetic.solve(*parts)}" == arithmetic.direct(*parts)
    assert [len(line) for line in lines] == [9, 9, 9] and len(copied) == 5
    carry = "0"
    for line in lines:  # every line follows from the question and the carry before
        op = parts[1]
        x, y, c = line[0], line[2], line[4]
        value = int(x) + int(y) + int(c) if op == "+" else int(x) - int(y) - int(c)
        assert c == carry
        assert line == f"{x}{op}{y}{op}{c}={value % 10},{int(not 0 <= value <= 9)}"
        carry = line[8]
    assert copied == "=" + carry + "".join(line[6] for line in reversed(lines))


def test_a_direct_answer_takes_a_guess():
    assert arithmetic.direct(347, "+", 586, 12) == "answer: 12"


def test_splits_never_share_a_question():
    train = arithmetic.questions("train", 3000, 1)
    test = arithmetic.questions("test", 1000, 2)
    twins = {(b, op, a) for a, op, b in train if op == "+"}
    assert not set(test) & (set(train) | twins)
    assert all(arithmetic.split_of(*parts) == "test" for parts in test)


@given(NUMBERS, NUMBERS)
@settings(deadline=None)
def test_a_sum_and_its_twin_are_in_one_split(a, b):
    assert arithmetic.split_of(a, "+", b) == arithmetic.split_of(b, "+", a)


def test_the_split_does_not_change_between_versions():
    """A model trained with one version is tested with another on questions it has not seen."""
    assert [b for b in range(100, 200) if arithmetic.split_of(347, "+", b) == "test"] == [
        108,
        109,
        113,
        123,
        126,
        144,
        147,
        157,
        162,
    ]
    assert arithmetic.questions("train", 2, 0) == [(105, "+", 671), (293, "-", 213)]


def test_questions_are_distinct_balanced_and_never_negative():
    drawn = arithmetic.questions("train", 2000, 0)
    assert len(set(drawn)) == 2000
    assert 850 < sum(op == "+" for _, op, _ in drawn) < 1150
    assert all(arithmetic.solve(*parts) >= 0 for parts in drawn)
    assert drawn != arithmetic.questions("train", 2000, 1)


def test_rows_load_as_a_dataset(tmp_path):
    rows = arithmetic.rows("test", 5, seed=3)
    dataset = RLDataset([str(write_parquet(rows, tmp_path / "test.parquet"))], None, DataConfig())
    row, (a, op, b) = dataset[4], arithmetic.questions("test", 5, 3)[4]
    assert row["raw_prompt"] == [{"role": "user", "content": f"{a}{op}{b}=?"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": str(arithmetic.solve(a, op, b))}
    assert row["extra_info"] == {"split": "test", "index": 4, "a": a, "op": op, "b": b}
    assert (row["data_source"], row["index"]) == ("burnish/arithmetic", 4)


def test_an_sft_row():
    row = arithmetic.sft_row(347, "+", 586, arithmetic.direct(347, "+", 586))
    assert [message["content"] for message in row["messages"]] == ["347+586=?", "answer: 933"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arithmetic.rows("dev", 1), "split 'dev' does not exist; use one of train, test"),
        (lambda: arithmetic.rows("test", 10**6), "1000000 different questions of the test split .* at most 50000"),
        (lambda: arithmetic.scratchpad(1, "+", 100), r"1\+100: both numbers have three digits, 100 to 999"),
        (lambda: arithmetic.solve(100, "*", 100), r"operation '\*' does not exist; use one of \+, -"),
        (lambda: arithmetic.scratchpad(100, "-", 200), "100-200: the first number of a difference is the larger"),
    ],
)
def test_bad_requests(call, message):
    with pytest.raises(DataError, match=message):
        call()
