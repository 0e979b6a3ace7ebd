"""Loading a user's function and checking its signature; every message names the key, the value and the fix."""

import pytest

from burnish.errors import ConfigError, NotAvailable
from burnish.rewards.contract import ScoreRequest
from burnish.rewards.function import bind, load_function

REQUEST = ScoreRequest("src", "text", "truth", {"index": 3})


def problem(path: str, name: str = "compute_score", **reward_kwargs) -> str:
    with pytest.raises(ConfigError) as error:
        bind(load_function(path, name), f"custom_reward_function.name={name} ({path})", reward_kwargs)
    return str(error.value)


def call(path: str, **reward_kwargs):
    return bind(load_function(path), "it", reward_kwargs)(REQUEST)


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        (
            "data_source, solution_str, ground_truth, extra_info=None",
            ["data_source", "extra_info", "ground_truth", "solution_str"],
        ),
        ("solution_str", ["solution_str"]),
        ("*, ground_truth", ["ground_truth"]),
        ("solution_str, weight=2", ["solution_str", "weight"]),
        ("solution_str, **kwargs", ["data_source", "extra_info", "ground_truth", "solution_str"]),
        ("*args, solution_str", ["args", "solution_str"]),
    ],
)
def test_a_function_gets_the_parameters_it_names(reward_file, signature, expected):
    path = reward_file(f"""
        def compute_score({signature}):
            names = dict(locals())
            names |= names.pop("kwargs", {{}})
            return sorted(names)
        """)
    assert call(path) == expected


def test_values_come_by_name(reward_file):
    path = reward_file("""
        def compute_score(ground_truth, extra_info, data_source, bonus):
            return ground_truth, extra_info, data_source, bonus
        """)
    assert call(path, bonus=7) == ("truth", {"index": 3}, "src", 7)


def test_a_file_imports_its_neighbours(reward_file):
    reward_file("HALF = 0.5", name="neighbour_of_the_reward.py")
    assert (
        call(reward_file("from neighbour_of_the_reward import HALF\ndef compute_score(solution_str): return HALF"))
        == 0.5
    )


def test_a_module_path(monkeypatch, tmp_path, reward_file):
    reward_file("def compute_score(solution_str): return 0.25", name="reward_module_of_the_test.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert call("reward_module_of_the_test") == 0.25


def test_missing_file(tmp_path, reward_file):
    reward_file("", name="my_reward.py")
    message = problem(str(tmp_path / "my_rewrad.py"))
    assert "custom_reward_function.path=" in message and "no such file (looked for" in message
    assert message.endswith("did you mean my_reward.py?")


def test_missing_module():
    assert problem("no_such_module_at_all") == (
        "custom_reward_function.path=no_such_module_at_all: no such file, and no module of that name; "
        "give a .py file or an importable module"
    )


def test_a_folder(tmp_path):
    assert "is a folder, not a .py file" in problem(str(tmp_path))


def test_missing_function_names_those_there(reward_file):
    path = reward_file("from math import sqrt\ndef compute_scores(x): ...\ndef other(): ...\nlimit = 3")
    message = problem(path)
    assert "custom_reward_function.name=compute_score" in message
    assert message.endswith("it defines compute_scores, other; did you mean compute_scores?")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("compute_score = 3", "it is of type int and cannot be called"),
        ("class compute_score: ...", "it is a class; name a function"),
    ],
)
def test_not_a_function(reward_file, source, said):
    assert said in problem(reward_file(source))


@pytest.mark.parametrize(
    "source", ["import not_installed_anywhere", "def compute_score(:", "1 / 0", "import sys; sys.exit(3)"]
)
def test_a_file_that_cannot_be_imported_shows_the_users_traceback(reward_file, source):
    message = problem(reward_file(source))
    assert "importing it failed" in message and "my_reward.py" in message
    assert message.splitlines()[-1].startswith(
        ("ModuleNotFoundError", "SyntaxError", "ZeroDivisionError", "SystemExit")
    )
    assert "user_code.py" not in message


def test_unknown_required_parameters_are_named(reward_file):
    message = problem(reward_file("def compute_score(solution, answer, extra_info=None): ..."))
    assert "it requires solution, answer, which no row can fill; did you mean solution_str?" in message
    assert "Known names: data_source, solution_str, ground_truth, extra_info" in message
    assert "reward_kwargs" in message


def test_positional_only(reward_file):
    message = problem(reward_file("def compute_score(solution_str, /): ..."))
    assert "solution_str cannot be given by keyword" in message and "drop the '/'" in message


def test_reward_kwargs_are_checked(reward_file):
    path = reward_file("def compute_score(solution_str, weight=1, bias=0): ...")
    message = problem(path, wieght=2)
    assert message.startswith("custom_reward_function.reward_kwargs.wieght: ")
    assert message.endswith("(its own: bias, weight); did you mean weight?")
    assert problem(path, ground_truth=2) == (
        "custom_reward_function.reward_kwargs.ground_truth: filled from the row; use another name"
    )


def test_batch_form_is_recognised(reward_file):
    path = reward_file("def compute_score(data_sources, solution_strs, ground_truths, extra_infos): ...")
    with pytest.raises(NotAvailable) as error:
        bind(load_function(path), "it")
    assert "reward_model.reward_manager=batch" in str(error.value) and "solution_strs" in str(error.value)


def test_async_functions_and_objects_are_recognised(reward_file):
    path = reward_file("""
        class Judge:
            async def __call__(self, solution_str): return 1.0
        judge = Judge()
        async def compute_score(solution_str): return 1.0
        def plain(solution_str): return 1.0
        """)
    concurrent = [bind(load_function(path, name), name).concurrent for name in ("judge", "compute_score", "plain")]
    assert concurrent == [True, True, False]
