import pytest

from burnish.data.tasks.search_qa import UNNAMED, row
from burnish.data.tasks.task import LeftOut
from burnish.errors import DataError

NOT_SAID = {"data_source": None}


@pytest.mark.parametrize(
    ("answers", "target"),
    [
        ({"golden_answers": ["Rome", "Roma"]}, ["Rome", "Roma"]),
        ({"answers": ["Rome", ""]}, ["Rome"]),
        ({"answer": "Rome"}, ["Rome"]),
        ({"answer": 1972}, ["1972"]),
    ],
)
def test_one_answer_or_several(answers, target):
    made = row({"question": "Where? ", "id": "q1"} | answers, NOT_SAID)
    assert made["reward_model"]["ground_truth"] == {"target": target}
    assert made["extra_info"] == {"question": "Where?", "id": "q1"}
    assert made["prompt"][0]["content"].endswith("\n\nQuestion: Where?")


def test_the_prompt_explains_every_tag():
    content = row({"question": "Where?", "answer": "Rome"}, NOT_SAID)["prompt"][0]["content"]
    for tag in ("think", "search", "information", "answer"):
        assert f"<{tag}>" in content and f"</{tag}>" in content
    assert "Rome" not in content


def test_the_source_is_the_one_said_or_the_one_of_the_record():
    record = {"question": "Where?", "answer": "Rome", "data_source": "musique"}
    assert row(record, NOT_SAID)["data_source"] == "musique"
    assert row(record, {"data_source": "nq"})["data_source"] == "nq"
    assert row(record | {"data_source": None}, NOT_SAID)["data_source"] == UNNAMED


@pytest.mark.parametrize("answers", [{"answer": []}, {"answer": ""}, {"golden_answers": None}, {"answers": [" "]}])
def test_a_question_without_an_answer_is_left_out(answers):
    with pytest.raises(LeftOut, match=f"'{next(iter(answers))}' is empty"):
        row({"question": "Where?"} | answers, NOT_SAID)


def test_answers_of_another_type():
    with pytest.raises(
        DataError, match=r"column 'answers' holds \{'text': 'Rome'\} \(dict\); every row needs text or num"
    ):
        row({"question": "Where?", "answers": {"text": "Rome"}}, NOT_SAID)
