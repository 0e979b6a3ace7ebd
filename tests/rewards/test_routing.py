import pytest

from burnish.errors import DataError, NotAvailable
from burnish.rewards.routing import SCORERS, check_row, default_compute_score, scorer_for, scorer_options


@pytest.mark.parametrize(
    ("source", "scorer"),
    [("openai/gsm8k", "gsm8k"), ("gsm8k", "gsm8k"), ("burnish/arithmetic", "arithmetic")],
)
def test_built_scorers(source, scorer):
    assert scorer_for(source).name == scorer


@pytest.mark.parametrize(
    ("source", "scorer"),
    [
        *[("lighteval/MATH", "math"), ("aime2024", "math_dapo"), ("numina_olympiads", "prime_math"), ("apps", "code")],
        *[("searchR1_nq", "qa_em"), ("nq", "qa_em"), ("countdown", "countdown"), ("hiyouga/geometry3k", "geo3k")],
        *[("reasoning_gym/chess", "reasoning_gym"), ("multiply", "multiply")],
    ],
)
def test_scorers_that_come_later_say_so(source, scorer):
    with pytest.raises(NotAvailable) as error:
        scorer_for(source)
    assert str(error.value).startswith(f"not available yet: the scorer '{scorer}'")
    assert "custom_reward_function.path=my_reward.py" in str(error.value)


def test_unknown_source_names_the_known_ones_and_the_way_to_add_one():
    with pytest.raises(DataError) as error:
        default_compute_score("opanai/gsm8k", "#### 1", "1")
    message = str(error.value)
    assert "data_source='opanai/gsm8k'" in message and "did you mean 'openai/gsm8k'?" in message
    assert "Available: openai/gsm8k, gsm8k, burnish/arithmetic (not yet: the scorers math, " in message
    assert all(scorer.name in message for scorer in SCORERS)
    with pytest.raises(DataError) as error:
        scorer_for("contdown")  # near one that is not there
    assert "did you mean" not in str(error.value)
    assert "custom_reward_function.path" in message and "routing.py" in message


def test_no_source_belongs_to_two_scorers():
    sources = [source for scorer in SCORERS for source in scorer.sources]
    assert len(set(sources)) == len(sources)


def test_options_reach_the_scorers_that_name_them():
    assert default_compute_score("gsm8k", "it is 7", "7") == 0.0
    assert default_compute_score("gsm8k", "it is 7", "7", method="flexible") == 1.0
    assert default_compute_score("burnish/arithmetic", "answer: 7", 7, {"index": 1}, method="flexible")["score"] == 1.0
    assert scorer_options() == {"method", "format_score", "score"}


def row(**fields):
    return {"data_source": "gsm8k", "reward_model": {"style": "rule", "ground_truth": "7"}, **fields}


def test_a_good_row_has_no_problem():
    assert check_row(row()) is None
    assert check_row(row(reward_model={"style": "anything", "ground_truth": 0})) is None


@pytest.mark.parametrize("reward_model", [None, {}, {"ground_truth": None}, {"ground_truth": ""}, {"ground_truth": []}])
def test_a_row_without_the_ground_truth_its_scorer_reads(reward_model):
    problem = check_row(row(reward_model=reward_model))
    assert problem.startswith("reward_model.ground_truth is missing: the scorer 'gsm8k' of 'gsm8k' compares with it")
    assert "fill it in" in problem and "custom_reward_function.path" in problem
    assert check_row(row(reward_model=reward_model), custom=True) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"data_source": None},
            "the row has no data_source, which chooses the scorer: set custom_reward_function.path=",
        ),
        ({"data_source": "mystery"}, "data_source='mystery' has no built-in scorer"),
        ({"data_source": "math"}, "not available yet: the scorer 'math'"),
        ({"reward_model": "7"}, "reward_model='7': must be a dict"),
        ({"reward_model": {"style": "model"}}, "reward_model.style='model' asks for a reward model"),
    ],
)
def test_other_problems_name_the_field(fields, said):
    problem = check_row(row(**fields))
    assert problem is not None and problem.startswith(said)
    assert check_row(row(**fields), custom=True) is None


def test_a_row_without_a_data_source_hears_which_there_are():
    problem = check_row(row(data_source=None))
    assert check_row(row(data_source="unknown")) == problem  # as a dataset fills it in
    assert "or add the column. Available: openai/gsm8k, gsm8k, burnish/arithmetic (not yet: " in problem
    assert "lighteval/MATH" not in problem


@pytest.mark.parametrize("reward_model", [None, {}, {"style": "rule"}, {"ground_truth": None}])
@pytest.mark.parametrize("custom", [True, False])
def test_a_ground_truth_in_the_wrong_place(reward_model, custom):
    problem = check_row(row(reward_model=reward_model, ground_truth="7"), custom=custom)
    assert problem.startswith("the row has 'ground_truth' at top level; put it under reward_model: {")


def test_a_column_called_ground_truth_is_no_mistake_where_it_is_not_needed():
    assert check_row(row(ground_truth="8"), custom=True) is None  # reward_model has one as well
    assert check_row(row(reward_model=None, ground_truth="8"), custom=True, reads_ground_truth=False) is None


def test_the_column_that_holds_the_source_can_be_chosen():
    assert check_row({**row(data_source="mystery"), "task": "gsm8k"}, "task") is None
    assert check_row(row(), "extra_info.task") is None  # the dataset has already put it in data_source
