"""What a user can get wrong, through the command: reward functions, reward models and the sandbox."""

import json
import shutil

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from tests.bad_input.conftest import assert_says

CALL = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    "
UNLOADABLE = {
    "wrong signature": (
        "def compute_score(prediction, ground_truth):\n    return 1.0\n",
        ["custom_reward_function.name=compute_score", "prediction", "solution_str"],
    ),
    "batch form": (
        "def compute_score(solution_strs, ground_truths):\n    return [1.0]\n",
        ["takes lists of samples", "reward_model.reward_manager=batch"],
    ),
}


@pytest.mark.parametrize(("source", "parts"), UNLOADABLE.values(), ids=UNLOADABLE)
def test_a_reward_function_that_cannot_be_used(refuses, no_model, place, source, parts):
    (place / "reward.py").write_text(source)
    assert_says(refuses("ppo"), *parts)


FAILING = {
    "raises": ('raise KeyError("lost")', ["KeyError: 'lost'", "reward.py"]),
    "hangs": ("import time; time.sleep(60)", ["0.3 s", "reward.timeout"]),
    "returns NaN": ('return float("nan")', ["compute_score of reward.py returned nan", "finite number"]),
}


@pytest.mark.parametrize(("body", "parts"), FAILING.values(), ids=FAILING)
def test_a_reward_function_that_fails(run, place, body, parts):
    (place / "reward.py").write_text(f"{CALL}{body}\n")
    limit = 0.3 if "sleep" in body else 60  # only the one that hangs is waited for
    code, _, err = run("ppo", f"reward.timeout={limit}", "reward.retries=0", "trainer.val_before_train=False")
    assert code == 2, err
    message = err[err.index("burnish: error: ") :]
    assert_says(message, "stopped after scoring", "of 8 samples: ", "reward.max_failure_ratio=0.05", *parts)
    assert "burnish/trainer" not in message, "a traceback shows the user's lines, not ours"
    assert not list(place.glob("run/global_step_*"))


def test_a_named_reward_that_is_missing(refuses, place):
    (place / "reward.py").write_text("def compute_score(solution_str):\n    return {'score': 0.5, 'format': 1}\n")
    message = refuses("ppo", "algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[format,correct]")
    assert_says(message, "algorithm.gdpo_reward_keys names 'correct'", "data_source", "score, format")


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


def test_reward_models_that_cannot_be_used(refuses, no_model, place, rm, tiny_model):
    job = ["ppo", *RM, "data.train_files=model.parquet"]
    said = refuses(*job, "reward_model.model.path=nowhere")
    assert_says(said, "reward_model.model", "nowhere", "no such folder")
    rm(labels=2)
    assert_says(refuses(*job), "reward_model.model", "rm", "2 labels", "burnish rm")
    rm(template=False)
    assert_says(refuses(*job), "reward_model.model", "chat template", "tokenizer_config.json")
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(place / "rm")
    assert_says(refuses(*job), "rm", "no reward model", "burnish rm")


def code_rows() -> list[dict]:
    truth = json.dumps(["assert add(1, 2) == 3"])
    rows = arithmetic.rows("train", 4, seed=0)
    return [row | {"data_source": "mbpp", "reward_model": {"style": "rule", "ground_truth": truth}} for row in rows]


def test_a_host_that_permits_no_sandbox_and_a_server_that_does_not_answer(refuses, no_model, monkeypatch):
    async def unavailable_reason(self) -> str:
        return "this machine permits no namespaces; allow them, or set reward_model.sandbox.allow_unsafe=true"

    monkeypatch.setattr("burnish.sandbox.local.LocalSandbox.unavailable_reason", unavailable_reason)
    write_parquet(code_rows(), "code.parquet")
    job = ["ppo", "custom_reward_function.path=DROP", "data.train_files=code.parquet"]
    assert_says(refuses(*job), "permits no namespaces", "reward_model.sandbox.allow_unsafe=true")
    said = refuses(*job, "reward_model.sandbox.url=http://127.0.0.1:9/run_code")
    assert_says(said, "http://127.0.0.1:9/run_code", "reward_model.sandbox.url")
