"""Records of files to the rows of each split, and what is said of files that do not fit."""

from burnish.data.files import read_rows, write_parquet
from burnish.data.sources import Origin
from burnish.data.tasks import TASKS, find, load
from burnish.data.tasks.task import FileTask, from_files, generated
from burnish.errors import ConfigError
from tests.data.conftest import refused

GSM8K = {"data_source": "openai/gsm8k"}


def records(start, stop):
    return [{"question": f"{i} apples and one more?", "answer": f"#### {i + 1}"} for i in range(start, stop)]


def make(origin, task="gsm8k", options=GSM8K):
    return from_files(load(task), origin, options)


def test_rows_say_their_split_and_where_their_record_stood(write_jsonl):
    some = [records(0, 1)[0], {"question": "How?", "answer": ""}, *records(1, 3)]
    files = [write_jsonl(some), write_jsonl(records(5, 7), "b.jsonl")]
    made = make(Origin(train=files, test=[write_jsonl(records(9, 10), "c.jsonl")]))
    info = [row["extra_info"] for row in made["train"].rows]
    assert [(one["split"], one["index"]) for one in info] == [("train", i) for i in (0, 2, 3, 4, 5)]
    assert [row["reward_model"]["ground_truth"] for row in made["train"].rows] == ["1", "2", "3", "6", "7"]
    assert made["test"].rows[0]["extra_info"]["split"] == "test"
    assert made["train"].reasons() == "1 because 'answer' is empty" and not made["test"].left_out


def test_a_missing_column_is_reported_and_one_of_several_names_is_enough(write_jsonl):
    file = write_jsonl([{"problem": "p", "answer": "#### 1"}])
    said = f"{file}: no column 'question'; the columns are problem, answer. The task reads question, answer; say which"
    refused(f"^{said} is the problem: --rename THEIRS=question$", make, Origin(train=[file]))
    assert make(Origin(train=[file], rename={"problem": "question"}))["train"].rows
    several = "no column 'golden_answers' or 'answers' or 'answer'; .*The task reads question, gol"
    refused(several, make, Origin(train=[write_jsonl([{"question": "q"}])]), "search_qa", {"data_source": None})


def test_nothing_left_is_an_error_with_the_reasons(write_jsonl):
    file = write_jsonl([{"question": "q", "answer": ""}, *[{"question": "q", "answer": "x"}] * 2])
    reasons = "2 because 'answer' does not end with #### and a number; 1 because 'answer' is empty"
    refused(f"rows.jsonl: none of 3 records can become a row: {reasons}", make, Origin(train=[file]))


def test_generated_rows_are_placed_and_pictures_of_some_rows_are_written(write_jsonl, tmp_path):
    made = generated(load("multiply"), {"train": 3, "test": 2}, 1, {"digits": "2"})
    places = [(row["extra_info"]["split"], row["extra_info"]["index"]) for part in made.values() for row in part.rows]
    assert places == [("train", 0), ("train", 1), ("train", 2), ("test", 0), ("test", 1)]
    some = [{"problem": "Find x.", "answer": "1"}, {"problem": "<image>Find y.", "answer": "2", "images": ["a.png"]}]
    options = {"data_source": "hiyouga/geometry3k", "text_only": False}
    made = make(Origin(train=[write_jsonl(some)]), "geo3k", options)
    rows = read_rows(write_parquet(made["train"].rows, tmp_path / "train.parquet"))
    assert [row["images"] for row in rows] == [None, ["a.png"]]


def test_every_task_of_the_table_is_there_and_an_unknown_one_names_the_nearest():
    for name in TASKS:
        task = load(name)
        assert task.about and find(name)
        assert len({option.name for option in task.options}) == len(task.options)
        if isinstance(task, FileTask):
            assert any(column.required for column in task.reads) and task.hub.splits()
    refused(r"no such task: gsm8; did you mean gsm8k\? There are: gsm8k, gsm8k_tool", find, "gsm8", error=ConfigError)
    refused("no such task: zzz; There are: gsm8k", find, "zzz", error=ConfigError)
