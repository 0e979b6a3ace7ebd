"""Invented people: every seed is another world, nobody asked about in one split is asked about in the other, and the
corpus answers every question."""

import json

import pytest

from burnish.data.tasks import facts
from burnish.data.tasks.facts import TASK
from burnish.errors import DataError
from burnish.rewards.routing import default_compute_score
from burnish.search.documents import Document


def test_rows_ask_for_a_name_that_a_document_gives():
    documents = [Document(**one) for one in facts.corpus(1)]
    by_question = {f.question: f for part in facts.world(1).values() for f in part}
    for row in facts.rows("test", 20, 1):
        question, answers = row["prompt"][0]["content"], row["reward_model"]["ground_truth"]["target"]
        fact = by_question[question]
        (found,) = [one for one in documents if one.contents == fact.document]
        assert found.title == fact.person and found.text.endswith(f" is {answers[0]}.") and answers[0] != fact.person
        result = default_compute_score(
            row["data_source"], f"<answer> {answers[0].lower()} </answer>", {"target": answers}
        )
        assert result["score"] == 1.0


def test_the_splits_ask_about_other_people():
    world = facts.world(3)
    people = {split: {fact.person for fact in part} for split, part in world.items()}
    assert {split: len(names) for split, names in people.items()} == facts.PEOPLE
    assert not people["train"] & people["test"]
    asked = [fact.question for part in world.values() for fact in part]
    assert len(set(asked)) == len(asked) == len(facts.corpus(3)) == 1024


def test_a_seed_makes_a_world_of_its_own():
    assert facts.world(1) == facts.world(1)
    told = {fact.question: fact.answer for fact in facts.world(1)["train"]}
    again = {fact.question: fact.answer for fact in facts.world(2)["train"]}
    both = told.keys() & again.keys()
    assert len(both) > 50 and sum(told[question] == again[question] for question in both) < 5
    assert facts.rows("test", 1, 1)[0]["prompt"][0]["content"] == "Who is the rival of Arba?"


def test_worlds_have_no_name_that_is_taught():
    assert not set(facts.NEW) & set(facts.TAUGHT) and len(facts.NEW) + len(facts.TAUGHT) == len(facts.NAMES) == 1024
    for seed in (1, 2):
        named = {name for part in facts.world(seed).values() for fact in part for name in (fact.person, fact.answer)}
        assert named <= set(facts.NEW)


def test_the_corpus_is_written_where_it_is_asked_for(tmp_path):
    file = tmp_path / "new" / "corpus.jsonl"
    assert TASK.generate("test", 4, 5, {"corpus": str(file)}) == facts.rows("test", 4, 5)
    assert [json.loads(line) for line in file.read_text().splitlines()] == facts.corpus(5)
    assert TASK.generate("test", 4, 5, {"corpus": ""}) == facts.rows("test", 4, 5)
    assert list(tmp_path.rglob("*.jsonl")) == [file]


def test_more_questions_than_a_world_has():
    assert len(facts.rows("test", 256, 1)) == 256
    with pytest.raises(DataError, match=r"257 test questions are asked for; a world has 256: ask for fewer \(--test-s"):
        facts.rows("test", 257, 1)
    with pytest.raises(DataError, match="split 'dev' does not exist"):
        facts.rows("dev", 1, 1)
