"""Generated tasks: rows follow from a seed, no question is in both splits, and the rows can be scored."""

import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.config.data import DataConfig
from burnish.data.dataset import RLDataset
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic, calculator, facts, load
from burnish.data.tasks.task import distinct, keep_apart, mark, split_of
from burnish.errors import ConfigError
from burnish.rewards.routing import default_compute_score
from burnish.search.documents import Document
from tests.data.conftest import refused

NUMBERS = st.integers(100, 999)
OPTIONS = {"multiply": {"digits": "2"}, "countdown": {"numbers": "2"}}  # few questions: splits draw most of them


def made(task, split, count, seed, **options):
    return load(task).generate(split, count, seed, OPTIONS.get(task, {}) | options)


def question(row):
    """What tells questions apart: the same numbers in another order are one question."""
    info, truth = row["extra_info"], row["reward_model"]["ground_truth"]
    if isinstance(truth, dict):
        return (*sorted(truth["numbers"]), truth["target"])
    return (*sorted((info["a"], info["b"])), info.get("op"))


class TestSplits:
    @pytest.mark.parametrize(
        ("task", "train", "test"),
        [("multiply", 1500, 200), ("calculator", 3000, 500), ("countdown", 2000, 300), ("arithmetic", 3000, 1000)],
    )
    def test_splits_never_share_a_question_whatever_the_seeds(self, task, train, test):
        learnt = {question(row) for seed in (1, 2) for row in made(task, "train", train, seed)}
        asked = {question(row) for seed in (1, 3) for row in made(task, "test", test, seed)}
        assert len(learnt) > train and len(asked) > test and not learnt & asked

    @pytest.mark.parametrize("task", ["multiply", "calculator", "countdown", "arithmetic"])
    def test_rows_follow_from_the_seed(self, task):
        rows = made(task, "test", 40, 4)
        assert rows == made(task, "test", 40, 4) != made(task, "test", 40, 5)
        assert made(task, "test", 10, 4) == rows[:10] and len({question(row) for row in rows}) == 40

    def test_questions_do_not_change_between_versions(self):
        """A model trained with one version is tested with another on questions it has not seen."""
        answers = [row["extra_info"]["answer"] for row in made("countdown", "test", 3, 1, numbers="3,4")]
        assert answers == [
            "<answer>(76 - 33) - (48 / 6)</answer>",
            "<answer>((91 + 45) - 8) - 34</answer>",
            "<answer>70 - (35 / 1)</answer>",
        ]
        products = [row["extra_info"] for row in made("multiply", "test", 3, 1, digits="3")]
        assert [(info["a"], info["b"]) for info in products] == [(243, 835), (776, 127), (969, 829)]
        held_out = [b for b in range(100, 200) if arithmetic.split_of(347, "+", b) == "test"]
        assert held_out == [108, 109, 113, 123, 126, 144, 147, 157, 162]
        assert arithmetic.questions("train", 2, 0) == [(105, "+", 671), (293, "-", 213)]
        assert facts.rows("test", 1, 1)[0]["prompt"][0]["content"] == "Who is the rival of Arba?"
        assert [i for i in range(40) if split_of(str(i)) == "test"] == [0, 7, 9, 10, 33]

    def test_distinct_takes_the_first_of_each_question_and_stops_where_nothing_new_comes(self):
        drawn = [(str(i % 50), i) for i in range(10_000)]
        assert list(distinct("train", 20, drawn)) == [i for i in range(50) if split_of(str(i)) == "train"][:20]
        few = r"only 1 of 2 different train questions .*ask for fewer \(--train-size\) or widen"
        for split, message in (("train", few), ("dev", "split 'dev' does not exist; use one of train, test")):
            refused(message, list, distinct(split, 2, itertools.repeat(("1", 1))))

    @pytest.mark.parametrize(
        ("task", "options", "message"),
        [("multiply", {"digits": typed}, f"--digits {typed}: write the digits of both numbers, 1 to 9, e.g. 3 or 3x2")
         for typed in ("0", "x", "3x", "3x0", "10")]
        + [("countdown", {"numbers": typed}, f"--numbers {typed}: write counts from 2 to 8 with commas between")
           for typed in ("", "1", "9", "3;4", "three", "3,")],
    )  # fmt: skip
    def test_options_that_cannot_be_read(self, task, options, message):
        refused(message, made, task, "train", 1, 0, **options, error=ConfigError)


class TestKeepApart:
    ROWS = [{"prompt": [{"role": "user", "content": f"question {i}"}]} for i in range(200)]  # noqa: RUF012

    @staticmethod
    def contents(rows):
        return [row["prompt"][0]["content"] for row in rows]

    def test_the_test_split_does_not_depend_on_the_order(self):
        train, test = keep_apart(self.ROWS, 20)
        assert (len(train), len(test)) == (180, 20)
        assert self.contents(train) == [text for text in self.contents(self.ROWS) if text not in self.contents(test)]
        shuffled = random.Random(0).sample(self.ROWS, len(self.ROWS))
        assert set(self.contents(keep_apart(shuffled, 20)[1])) == set(self.contents(test))
        assert set(self.contents(keep_apart(self.ROWS, 10)[1])) < set(self.contents(test))
        refused("--test-size 200 leaves nothing to train on: there are 200 different", keep_apart, self.ROWS, 200)

    def test_equal_questions_go_to_the_same_split_and_pictures_tell_texts_apart(self):
        _, test = keep_apart(self.ROWS, 20)
        again = [{"prompt": [{"role": "user", "content": f"  Question\n{i} "}]} for i in range(0, 200, 3)]
        train, more = keep_apart([*self.ROWS, *again], 20)
        marks = {mark(row) for row in test}
        assert {mark(row) for row in more} == marks and not marks & {mark(row) for row in train}
        assert len(more) > 20
        pictures = [{"bytes": bytes([i]), "path": None} for i in range(9)]
        rows = [{**self.ROWS[0], "images": [p]} for p in (*pictures, {"bytes": None, "path": "a.png"}, "b.png")]
        assert len({mark(row) for row in [*rows, self.ROWS[0]]}) == 12
        assert len(keep_apart(rows, 3)[1]) == 3


class TestArithmetic:
    def test_a_sum_and_a_difference_worked_out_and_answers_to_learn_from(self):
        assert arithmetic.scratchpad(347, "+", 586) == "7+6+0=3,1\n4+8+1=3,1\n3+5+1=9,0\n=0933\nanswer: 933"
        assert arithmetic.scratchpad(523, "-", 519) == "3-9-0=4,1\n2-1-1=0,0\n5-5-0=0,0\n=0004\nanswer: 4"
        assert arithmetic.direct(347, "+", 586, 12) == "answer: 12"
        row = arithmetic.sft_row(347, "+", 586, arithmetic.direct(347, "+", 586))
        assert [message["content"] for message in row["messages"]] == ["347+586=?", "answer: 933"]

    @given(NUMBERS, NUMBERS, st.sampled_from("+-"))
    @settings(deadline=None)
    def test_the_scratchpad_is_right_and_of_one_length(self, a, b, op):
        a, b = (max(a, b), min(a, b)) if op == "-" else (a, b)
        *lines, copied, answer = arithmetic.scratchpad(a, op, b).split("\n")
        assert answer == f"answer: {arithmetic.solve(a, op, b)}" == arithmetic.direct(a, op, b)
        assert [len(line) for line in lines] == [9, 9, 9] and len(copied) == 5
        carry = "0"
        for line in lines:  # every line follows from the question and the carry before
            x, y, c = line[0], line[2], line[4]
            value = int(x) + int(y) + int(c) if op == "+" else int(x) - int(y) - int(c)
            assert c == carry and line == f"{x}{op}{y}{op}{c}={value % 10},{int(not 0 <= value <= 9)}"
            carry = line[8]
        assert copied == "=" + carry + "".join(line[6] for line in reversed(lines))

    def test_rows_load_as_a_dataset_and_questions_are_balanced_and_never_negative(self, tmp_path):
        rows = made("arithmetic", "test", 5, 3)
        assert rows == arithmetic.rows("test", 5, seed=3), "those of the quickstart"
        dataset = RLDataset([str(write_parquet(rows, tmp_path / "test.parquet"))], None, DataConfig())
        row, (a, op, b) = dataset[4], arithmetic.questions("test", 5, 3)[4]
        assert row["raw_prompt"] == [{"role": "user", "content": f"{a}{op}{b}=?"}]
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(arithmetic.solve(a, op, b))}
        assert row["extra_info"] == {"split": "test", "index": 4, "a": a, "op": op, "b": b}
        assert (row["data_source"], row["index"]) == ("burnish/arithmetic", 4)
        drawn = arithmetic.questions("train", 2000, 0)
        assert len(set(drawn)) == 2000 and 850 < sum(op == "+" for _, op, _ in drawn) < 1150
        assert all(arithmetic.solve(*parts) >= 0 for parts in drawn)

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
    def test_bad_requests(self, call, message):
        refused(message, call)


def test_rows_give_the_product_and_its_question():
    for row in calculator.rows("train", 20, seed=1):
        a, b = row["extra_info"]["a"], row["extra_info"]["b"]
        assert row["prompt"] == [{"role": "user", "content": f"What is {a} * {b}?"}]
        assert 100 <= min(a, b) <= max(a, b) < 1000 and row["reward_model"]["ground_truth"] == str(a * b)
        assert row["agent_name"] == "tool_agent" and row["tool_config"] == {"available_tools": ["calculator"]}
        assert default_compute_score(row["data_source"], f"<answer> {a * b} </answer>", str(a * b))["score"] == 1.0
    for row in made("multiply", "train", 50, 0, digits="3x2"):
        a, b = row["extra_info"]["a"], row["extra_info"]["b"]
        assert 100 <= a <= 999 and 10 <= b <= 99 and row["data_source"] == "multiply"
        assert row["prompt"][0]["content"].startswith(f"What is {a} * {b}? ")
        assert row["reward_model"]["ground_truth"] == str(a * b)
        assert row["extra_info"]["answer"] == f"<answer>{a * b}</answer>"


@pytest.mark.parametrize("numbers", ["2", "3,4", "8"])
def test_countdown_solutions_use_each_number_once(numbers):
    rows = made("countdown", "train", 60, 0, numbers=numbers)
    for row in rows:
        truth = row["reward_model"]["ground_truth"]
        solution = row["extra_info"]["answer"].removeprefix("<answer>").removesuffix("</answer>")
        assert default_compute_score("countdown", f"<answer>{solution}</answer>", truth)["score"] == 1.0
        assert 1 <= truth["target"] <= 100 and all(1 <= number <= 99 for number in truth["numbers"])
        content = row["prompt"][0]["content"]
        assert f"Make {truth['target']} out of the numbers {', '.join(map(str, truth['numbers']))}." in content
        assert row["data_source"] == "countdown" and solution not in content
    assert {row["extra_info"]["difficulty"] for row in rows} == set(map(int, numbers.split(",")))


class TestFacts:
    def test_rows_ask_for_a_name_that_a_document_gives(self):
        documents = [Document(**one) for one in facts.corpus(1)]
        by_question = {f.question: f for part in facts.world(1).values() for f in part}
        for row in facts.rows("test", 20, 1):
            answers = row["reward_model"]["ground_truth"]["target"]
            fact = by_question[row["prompt"][0]["content"]]
            (found,) = [one for one in documents if one.contents == fact.document]
            assert found.title == fact.person and found.text.endswith(f" is {answers[0]}.")
            assert answers[0] != fact.person
            given = f"<answer> {answers[0].lower()} </answer>"
            assert default_compute_score(row["data_source"], given, {"target": answers})["score"] == 1.0

    def test_splits_ask_about_different_people_and_seeds_are_different_worlds(self):
        worlds = [facts.world(seed) for seed in (1, 2)]
        assert worlds[0] == facts.world(1)
        for world in worlds:
            people = {split: {fact.person for fact in part} for split, part in world.items()}
            assert {split: len(names) for split, names in people.items()} == facts.PEOPLE
            assert not people["train"] & people["test"]
            all_facts = [fact for part in world.values() for fact in part]
            assert len({fact.question for fact in all_facts}) == len(all_facts) == len(facts.corpus(1)) == 1024
            assert {name for fact in all_facts for name in (fact.person, fact.answer)} <= set(facts.NEW)
        answers = [{fact.question: fact.answer for fact in world["train"]} for world in worlds]
        both = answers[0].keys() & answers[1].keys()
        assert len(both) > 50 and sum(answers[0][asked] == answers[1][asked] for asked in both) < 5
        assert not set(facts.NEW) & set(facts.TAUGHT) and len(facts.NEW) + len(facts.TAUGHT) == len(facts.NAMES) == 1024

    def test_the_corpus_is_written_where_it_is_asked_for_and_a_world_has_so_many_questions(self, tmp_path):
        file = tmp_path / "new" / "corpus.jsonl"
        assert made("facts", "test", 4, 5, corpus=str(file)) == facts.rows("test", 4, 5)
        assert [json.loads(line) for line in file.read_text().splitlines()] == facts.corpus(5)
        assert made("facts", "test", 4, 5, corpus="") == facts.rows("test", 4, 5)
        assert list(tmp_path.rglob("*.jsonl")) == [file]
        assert len(facts.rows("test", 256, 1)) == 256
        refused(r"257 test questions are asked for; a world has 256: .*\(--test-s", facts.rows, "test", 257, 1)
        refused("split 'dev' does not exist", facts.rows, "dev", 1, 1)
