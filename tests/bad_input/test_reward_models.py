"""What a user can get wrong about reward models and the sandbox, through the command; told before a model is loaded."""

import json
import shutil

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from tests.bad_input.said import assert_says

RM = ["reward_model.enable=true", "reward_model.model.path=rm", "custom_reward_function.path=DROP"]


@pytest.fixture
def rm(place, tiny_model):
    """Rows that ask for a reward model, and one that fits the policy; `rm(labels=2)` makes it another."""

    def make(labels: int = 1, template: bool = True) -> None:
        shutil.copytree(tiny_model, place / "rm", dirs_exist_ok=True)
        AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=labels).save_pretrained(place / "rm")
        if not template:
            tokenizer = AutoTokenizer.from_pretrained(tiny_model)
            tokenizer.chat_template = None
            for path in (place / "rm").glob("chat_template*"):
                path.unlink()
            tokenizer.save_pretrained(place / "rm")

    rows = [row | {"reward_model": {"style": "model"}} for row in arithmetic.rows("train", 4, seed=0)]
    write_parquet(rows, "model.parquet")
    make()
    return make


def test_the_right_command_runs(run, rm):
    code, _, err = run("ppo", *RM, "data.train_files=model.parquet")
    assert code == 0, err


def test_a_reward_model_that_is_not_there(refuses, no_model, rm):
    said = refuses("ppo", *RM, "data.train_files=model.parquet", "reward_model.model.path=nowhere")
    assert_says(said, "reward_model.model", "nowhere", "no such folder")


def test_a_reward_model_with_two_labels(refuses, no_model, rm):
    rm(labels=2)
    said = refuses("ppo", *RM, "data.train_files=model.parquet")
    assert_says(said, "reward_model.model", "rm", "2 labels", "burnish rm")


def test_a_language_model_as_reward_model(refuses, no_model, place, rm, tiny_model):
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(place / "rm")
    assert_says(refuses("ppo", *RM, "data.train_files=model.parquet"), "rm", "no reward model", "burnish rm")


def test_a_reward_model_whose_tokenizer_has_no_chat_template(refuses, no_model, rm):
    rm(template=False)
    said = refuses("ppo", *RM, "data.train_files=model.parquet")
    assert_says(said, "reward_model.model", "chat template", "tokenizer_config.json")


def test_a_reward_model_that_no_row_asks_for(refuses, no_model, rm):
    said = refuses("ppo", *RM)
    assert_says(said, "reward_model.enable=true", "reward_model.style", "model", "both")


def code_rows() -> list[dict]:
    truth = json.dumps(["assert add(1, 2) == 3"])
    rows = arithmetic.rows("train", 4, seed=0)
    return [row | {"data_source": "mbpp", "reward_model": {"style": "rule", "ground_truth": truth}} for row in rows]


def test_a_host_that_permits_no_sandbox(refuses, no_model, monkeypatch):
    async def why_not(self) -> str:
        return "this machine permits no namespaces; allow them, or set reward_model.sandbox.allow_unsafe=true"

    monkeypatch.setattr("burnish.sandbox.local.LocalSandbox.why_not", why_not)
    write_parquet(code_rows(), "code.parquet")
    said = refuses("ppo", "custom_reward_function.path=DROP", "data.train_files=code.parquet")
    assert_says(said, "permits no namespaces", "reward_model.sandbox.allow_unsafe=true")


def test_a_sandbox_server_that_does_not_answer(refuses, no_model):
    write_parquet(code_rows(), "code.parquet")
    said = refuses(
        "ppo", "custom_reward_function.path=DROP", "data.train_files=code.parquet",
        "reward_model.sandbox.url=http://127.0.0.1:9/run_code",
    )  # fmt: skip
    assert_says(said, "http://127.0.0.1:9/run_code", "reward_model.sandbox.url")
