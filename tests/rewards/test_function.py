"""Loading a user's function or class and checking its signature; messages name the key, the value and the fix."""

from pathlib import Path

import pytest

from burnish.errors import ConfigError
from burnish.rewards.contract import ScoreRequest
from burnish.rewards.function import bind, load_function, score_here

REQUEST = ScoreRequest("src", "text", "truth", {"index": 3})
OTHER = ScoreRequest("src", "more", None, {})


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


def test_a_module_path(monkeypatch, tmp_path, reward_file):
    reward_file("def compute_score(solution_str): return 0.25", name="reward_module_of_the_test.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert call("reward_module_of_the_test") == 0.25


def test_missing_file(tmp_path, reward_file):
    reward_file("", name="my_reward.py")
    message = problem(str(tmp_path / "my_rewrad.py"))
    assert "custom_reward_function.path=" in message and "no such file (looked for" in message
    assert message.endswith("did you mean my_reward.py?")


def test_missing_function_names_those_there(reward_file):
    path = reward_file("from math import sqrt\ndef compute_scores(x): ...\ndef other(): ...\nlimit = 3")
    message = problem(path)
    assert "custom_reward_function.name=compute_score" in message
    assert message.endswith("it defines compute_scores, other; did you mean compute_scores?")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("compute_score = 3", "it is of type int and cannot be called"),
        (
            "class compute_score: ...",
            "compute_score is a class whose objects cannot be called; give it __call__(self, ",
        ),
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


@pytest.mark.parametrize(
    ("signature", "expected"),
    [
        ("data_sources, solution_strs, ground_truths, extra_infos", 4),
        ("solution_strs", 1),
        ("ground_truths, solution_strs, weight=1", 2),
        ("solution_strs, **kwargs", 4),
    ],
)
def test_the_batch_form_takes_lists(reward_file, signature, expected):
    path = reward_file(f"""
        def compute_score({signature}):
            given = dict(locals())
            given |= given.pop("kwargs", {{}})
            given.pop("weight", None)
            return given
        """)
    function = bind(load_function(path), "it")
    assert function.batch
    given = function(REQUEST, OTHER)
    everything = {
        "data_sources": ["src", "src"],
        "solution_strs": ["text", "more"],
        "ground_truths": ["truth", None],
        "extra_infos": [{"index": 3}, {}],
    }
    assert len(given) == expected and given.items() <= everything.items()


def test_what_the_batch_form_insists_on_is_told_in_the_singular(reward_file):
    path = reward_file("def compute_score(solution_strs, ground_truths, extra_infos=None): ...")
    assert bind(load_function(path), "it").required == ("solution_str", "ground_truth")


def test_the_two_forms_are_not_mixed(reward_file):
    message = problem(reward_file("def compute_score(solution_strs, ground_truth): ..."))
    assert "takes both solution_strs (lists, the batch form) and ground_truth (one sample)" in message


def test_an_unknown_name_of_the_batch_form(reward_file):
    message = problem(reward_file("def compute_score(solution_strs, ground_truhts): ..."))
    assert "it requires ground_truhts, which no row can fill; did you mean ground_truths?" in message


@pytest.mark.parametrize("name", ["ground_truth", "ground_truths"])
def test_names_of_rows_are_no_reward_kwargs(reward_file, name):
    message = problem(reward_file("def compute_score(**kwargs): ..."), **{name: 1})
    assert message == f"custom_reward_function.reward_kwargs.{name}: filled from the row; use another name"


CLASSES = """
    class Counting:
        def __init__(self, start, step=1):
            self.calls = start
            self.step = step
        def __call__(self, solution_str, bonus=0):
            self.calls += self.step
            return self.calls + bonus
    class Open:
        def __init__(self, **settings):
            self.settings = settings
        def __call__(self, solution_str, bonus=0):
            return {"score": bonus, **self.settings}
    class Both:
        def __init__(self, scale=1): self.scale = scale
        def __call__(self, scale): return self.scale, scale
    class Lists:
        def __call__(self, solution_strs): return [len(text) for text in solution_strs]
    class Waiting:
        async def __call__(self, solution_str): return 1.0
    class Broken:
        def __init__(self):
            open("/no/such/file")
        def __call__(self, solution_str): ...
    class Quitting(Broken):
        def __init__(self): raise SystemExit(3)
    class NoRow:
        def __call__(self, answer): ...
    """


def judge(reward_file, name, **reward_kwargs):
    path = reward_file(CLASSES)
    return bind(load_function(path, name), f"custom_reward_function.name={name} ({path})", reward_kwargs)


def test_a_class_is_constructed_once_and_keeps_its_state(reward_file):
    counting = judge(reward_file, "Counting", start=10, bonus=100)
    assert [counting(REQUEST), counting(REQUEST)] == [111, 112]
    assert judge(reward_file, "Counting", start=0, step=5)(REQUEST) == 5


def test_arguments_go_to_what_names_them(reward_file):
    assert judge(reward_file, "Open", a=1, bonus=2)(REQUEST) == {"score": 2, "a": 1}
    assert judge(reward_file, "Both", scale=3)(REQUEST) == (3, 3)


def test_classes_of_every_form(reward_file):
    lists, waiting = judge(reward_file, "Lists"), judge(reward_file, "Waiting")
    assert lists.batch and lists(REQUEST, OTHER) == [4, 4]
    assert waiting.concurrent and not waiting.batch
    (result,) = score_here(waiting, [REQUEST], "it")
    assert result.score == 1.0


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("Counting", {}, "the constructor of Counting requires start; give it a value in custom_reward_function.rew"),
        ("Counting", {"start": 1, "setp": 2}, "reward_kwargs.setp: custom_reward_function.name=Counting"),
        ("Counting", {"start": 1, "setp": 2}, "(its own: bonus, start, step); did you mean step?"),
        ("NoRow", {}, "it requires answer, which no row can fill"),
        ("Broken", {}, "constructing Broken failed"),
        ("Quitting", {}, "SystemExit: 3"),
    ],
)
def test_invalid_reward_class_is_refused(reward_file, name, kwargs, said):
    with pytest.raises(ConfigError) as error:
        judge(reward_file, name, **kwargs)
    assert said in str(error.value)


def test_a_constructor_that_raises_is_shown_by_file_and_line(reward_file):
    lines = Path(reward_file(CLASSES)).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, start=1) if "/no/such/file" in line]
    with pytest.raises(ConfigError) as error:
        judge(reward_file, "Broken")
    message = str(error.value)
    assert f'my_reward.py", line {number}, in __init__' in message and "burnish/rewards" not in message
    assert message.endswith("No such file or directory: '/no/such/file'")


def test_scoring_here_in_the_batch_form():
    def compute_score(solution_strs):
        return [len(solution_strs[0]), float("nan")]

    good, bad = score_here(bind(compute_score, "it"), [REQUEST, OTHER], "it")
    assert good.score == 4 and bad.score is None and "it, for sample 1, returned nan" in bad.error
    assert score_here(bind(compute_score, "it"), [], "it") == []
    failed = score_here(bind(lambda solution_strs: 1 / 0, "it"), [REQUEST, OTHER], "it")
    assert all("ZeroDivisionError" in result.error for result in failed) and len(failed) == 2


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
