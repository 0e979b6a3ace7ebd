import pytest

from burnish.data.tasks import gsm8k, gsm8k_tool
from burnish.data.tasks.task import LeftOut
from burnish.errors import DataError
from burnish.rewards.scores.gsm8k import compute_score

OPTIONS = {"data_source": "openai/gsm8k"}
RECORD = {"question": "Two boxes of 700 pens. How many?", "answer": "2 * 700 = <<2*700=1400>>1400\n#### 1,400"}


def test_a_row():
    row = gsm8k.row(RECORD, OPTIONS)
    assert row["prompt"] == [{"role": "user", "content": f"{RECORD['question']}\n\n{gsm8k.INSTRUCTION}"}]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "1400"}
    assert row["extra_info"] == {"question": RECORD["question"], "answer": RECORD["answer"]}
    assert (row["data_source"], row["ability"]) == ("openai/gsm8k", "math")


def test_the_worked_answer_earns_the_reward():
    row = gsm8k.row(RECORD, OPTIONS)
    assert compute_score(row["extra_info"]["answer"], row["reward_model"]["ground_truth"]) == 1


@pytest.mark.parametrize(
    ("written", "number"), [("#### 7", "7"), ("#### -3.5", "-3.5"), ("#### $1,234,567", "1234567"), ("#### 12 ", "12")]
)
def test_numbers_as_the_scorer_reads_them(written, number):
    truth = gsm8k.row(RECORD | {"answer": f"so\n{written}"}, OPTIONS)["reward_model"]["ground_truth"]
    assert truth == number
    assert compute_score(f"#### {truth}", truth) == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (RECORD | {"answer": "1400"}, "'answer' does not end with #### and a number"),
        (RECORD | {"answer": "#### 1400 pens"}, "'answer' does not end with #### and a number"),
        (RECORD | {"answer": None}, "'answer' is empty"),
        (RECORD | {"question": "  "}, "'question' is empty"),
    ],
)
def test_records_that_are_left_out(record, reason):
    with pytest.raises(LeftOut, match=reason):
        gsm8k.row(record, OPTIONS)


def test_a_question_that_is_no_text():
    with pytest.raises(DataError, match=r"column 'question' holds 5 \(int\); every row needs text there"):
        gsm8k.row(RECORD | {"question": 5}, OPTIONS)


def test_the_tool_row_gives_the_number_to_the_tool_and_the_interaction_and_not_to_the_model():
    row = gsm8k_tool.row(RECORD, OPTIONS)
    assert row["agent_name"] == "tool_agent"
    assert row["tools_kwargs"] == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "1400"}}}
    assert row["interaction_kwargs"] == {"name": "gsm8k", "query": RECORD["question"], "ground_truth": "1400"}
    system, user = row["prompt"]
    assert (system["role"], user) == ("system", {"role": "user", "content": RECORD["question"]})
    assert "`calc_gsm8k_reward`" in system["content"] and "1400" not in system["content"]
    assert row["reward_model"]["ground_truth"] == "1400" and row["extra_info"]["answer"] == RECORD["answer"]
