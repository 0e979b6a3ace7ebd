"""What a user can get wrong, through the command, told with thing, value and fix: files and rows."""

import shutil

import pytest

from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from tests.bad_input.conftest import EACH, MODEL_KEY, assert_says


@EACH
def test_files(refuses, no_model, place, command):
    there = {"ppo": "train.parquet", "sft": "sft.parquet", "rm": "pairs.parquet"}[command]
    whole, train = (place / "train.parquet").read_bytes(), "data.train_files"
    (place / "broken.parquet").write_bytes(whole[: len(whole) // 2])
    for override, *parts in (
        (f"{train}=['{there}','trian.parquet']", f"{train}: data file not found: trian.parquet", "working directory"),
        ("data.val_files=test.parquet", "data.val_files: data file not found: test.parquet"),
        (f"{train}=broken.parquet", f"{train}: broken.parquet: not a readable parquet file", "bytes", "again"),
        ("--config-name=recipes/nosuch", "--config-name=nosuch: no nosuch.yaml in", "(there: cispo, clip_higher, cur"),
    ):
        assert_says(refuses(command, override), *parts)


@EACH
def test_a_missing_column(refuses, no_model, command):
    write_parquet([{"question": "2+2", "answer": "4"}], "rows.parquet")
    message = refuses(command, "data.train_files=rows.parquet")
    key, column = {
        "ppo": ("data.prompt_key", "prompt"),
        "sft": ("data.messages_key", "messages"),
        "rm": ("data.chosen_key", "chosen"),
    }[command]
    assert_says(message, f"rows.parquet: no column '{column}'", "question, answer", f"Name the right one in {key}")


def arithmetic_rows(**changes) -> list[dict]:
    """Four rows; `changes` go into the third."""
    rows = arithmetic.rows("train", 4, seed=0)
    rows[2] |= changes
    return rows


BAD_ROWS = {
    "unknown data source": (
        {"data_source": "my/task"},
        ["data_source='my/task' has no built-in scorer", "custom_reward_function.path"],
    ),
    "a number where a program is wanted": (
        {"data_source": "mbpp", "reward_model": {"ground_truth": "7"}},
        ["reward_model.ground_truth", "code", "input"],
    ),
    "blanks where an answer is wanted": (
        {"data_source": "math", "reward_model": {"ground_truth": "  "}},
        ["reward_model.ground_truth", "math"],
    ),
    "no reward model": (
        {"reward_model": {"style": "model", "ground_truth": "1"}},
        ["reward_model.style='model'", "reward_model.enable=true", "reward_model.model.path"],
    ),
    "no prompt": ({"prompt": None}, ["field 'prompt' is missing or null"]),
    "no message": ({"prompt": []}, ["field 'prompt'"]),
    "message without content": ({"prompt": [{"role": "user", "content": None}]}, ["field 'prompt'", "content"]),
}


@pytest.mark.parametrize(("changes", "parts"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows(refuses, no_model, changes, parts):
    write_parquet(arithmetic_rows(**changes), "rows.parquet")
    message = refuses("ppo", "data.train_files=rows.parquet", "custom_reward_function.path=DROP")
    assert_says(message, "rows.parquet, row 2", *parts)


def test_a_row_whose_answer_is_at_the_top_level(refuses, no_model, place):
    (place / "mine.py").write_text("def compute_score(solution_str, ground_truth):\n    return 0.0\n")
    (place / "rows.jsonl").write_text('{"prompt": "2+2=?", "ground_truth": "4"}\n')
    message = refuses("ppo", "data.train_files=rows.jsonl", "custom_reward_function.path=mine.py")
    assert_says(message, "rows.jsonl, row 0", "the row has 'ground_truth' at top level; put it under reward_model: {")


def test_rows_over_the_limit_and_without_an_answer(refuses, no_model):
    write_parquet(arithmetic_rows(prompt=[{"role": "user", "content": "2+2" * 20}]), "rows.parquet")
    message = refuses("ppo", "data.train_files=rows.parquet", "data.truncation=error")
    assert_says(message, "rows.parquet, row 2", "data.max_prompt_length=32", "data.truncation", "filter_overlong")
    message = refuses("ppo", "data.max_prompt_length=4", "data.filter_overlong_prompts=True")
    assert_says(message, "all 4 prompts are over data.max_prompt_length=4", "Raise the limit")
    message = refuses("sft", "data.max_length=10")
    assert_says(message, "sft.parquet, row 0", "data.max_length=10", "data.truncation")
    write_parquet([{"messages": [{"role": "user", "content": "2+2"}]}], "rows.parquet")
    assert_says(refuses("sft", "data.train_files=rows.parquet"), "rows.parquet, row 0", "assistant")


@EACH
@pytest.mark.hostile
@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "it takes more than"),
        ("a" * 2**21, "chat_template.jinja: a chat template is a file of at most 1048576 bytes"),
    ],
    ids=["loops", "huge"],
)
def test_a_hostile_chat_template(refuses, no_model, place, tiny_model, monkeypatch, command, template, problem):
    monkeypatch.setattr("burnish.data.template.BUDGET", 10**5)
    shutil.copytree(tiny_model, "bad")
    (place / "bad" / "chat_template.jinja").write_text(template)
    message = refuses(command, f"{MODEL_KEY[command]}=bad")
    assert_says(message, "bad", problem)
    assert message.count("\n") == 1
