"""What a user can get wrong, through the command: exit code 2, no traceback, and a message with thing, value and fix.

Here: reward functions.
"""

import pytest

from tests.bad_input.said import assert_says

CALL = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    "
UNLOADABLE = {
    "no such file": (None, ["custom_reward_function.path=rewrd.py", "no such file", "did you mean reward.py?"]),
    "no such name": (
        "def compute_scores(solution_str):\n    return 1.0\n",
        ["custom_reward_function.name=compute_score", "no such name", "did you mean compute_scores?"],
    ),
    "not a function": ("compute_score = 3\n", ["custom_reward_function.name=compute_score", "int", "cannot be called"]),
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
    if source is not None:
        (place / "reward.py").write_text(source)
    path = "rewrd.py" if source is None else "reward.py"
    assert_says(refuses("ppo", f"custom_reward_function.path={path}"), *parts)


def test_a_reward_function_that_cannot_be_imported(run, no_model, place):
    (place / "reward.py").write_text("import no_such_package\n")
    code, _, err = run("ppo")
    assert code == 2
    assert_says(err, "custom_reward_function.path=reward.py: importing it failed", "No module named 'no_such_package'")


FAILING = {
    "raises": ('raise KeyError("lost")', ["KeyError: 'lost'", "reward.py"]),
    "hangs": ("import time; time.sleep(60)", ["0.3 s", "reward.timeout"]),
    "returns NaN": ('return float("nan")', ["compute_score of reward.py returned nan", "finite number"]),
    "returns a string": ('return "good"', ["compute_score of reward.py returned", "'good'", "finite number"]),
    "returns None": ("return None", ["compute_score of reward.py returned None", "finite number"]),
    "returns a dict without score": ('return {"reward": 1}', ['a dict without "score"', "reward"]),
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


def test_groups_that_are_all_alike(refuses, place):
    (place / "reward.py").write_text("def compute_score(solution_str):\n    return {'score': 0.5, 'acc': 1}\n")
    said = refuses("ppo", "custom_reward_function.path=reward.py", "algorithm.filter_groups.enable=true",
                   "algorithm.filter_groups.max_num_gen_batches=2")  # fmt: skip
    assert_says(said, "step 1: nothing to learn from", "2 rounds", "the same acc", "max_num_gen_batches")


def test_a_component_that_the_function_does_not_return(refuses, place):
    (place / "reward.py").write_text("def compute_score(solution_str):\n    return {'score': 0.5, 'format': 1}\n")
    said = refuses("ppo", "custom_reward_function.path=reward.py", "algorithm.adv_estimator=gdpo",
                   "algorithm.gdpo_reward_keys=[format,correct]")  # fmt: skip
    assert_says(said, "algorithm.gdpo_reward_keys names 'correct'", "data_source", "score, format")


def test_an_option_no_scorer_has(refuses, no_model):
    message = refuses("ppo", "custom_reward_function.path=DROP", "+custom_reward_function.reward_kwargs.methd=strict")
    assert_says(message, "custom_reward_function.reward_kwargs.methd", "did you mean method?")
