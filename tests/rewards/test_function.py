"""Loading a user's function or class and checking its signature; messages name the key, the value and the fix."""

import re
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


ONE = {"data_source": "src", "solution_str": "text", "ground_truth": "truth", "extra_info": {"index": 3}}
MANY = {
    "data_sources": ["src", "src"],
    "solution_strs": ["text", "more"],
    "ground_truths": ["truth", None],
    "extra_infos": [{"index": 3}, {}],
}


@pytest.mark.parametrize(
    ("signature", "names"),
    [
        ("data_source, solution_str, ground_truth, extra_info=None", ONE),
        ("solution_str", ["solution_str"]),
        ("*, ground_truth", ["ground_truth"]),
        ("solution_str, weight=2", ["solution_str"]),
        ("solution_str, **kwargs", ONE),
        ("*args, solution_str", ["solution_str"]),
        ("data_sources, solution_strs, ground_truths, extra_infos", MANY),
        ("solution_strs", ["solution_strs"]),
        ("ground_truths, solution_strs, weight=2", ["ground_truths", "solution_strs"]),
        ("solution_strs, **kwargs", MANY),
    ],
)
def test_a_function_gets_the_parameters_it_names_in_the_batch_form_as_lists(reward_file, signature, names):
    path = reward_file(f"""
        def compute_score({signature}):
            given = dict(locals())
            assert given.pop("args", ()) == () and given.pop("weight", 2) == 2
            return given | given.pop("kwargs", {{}})
        """)
    function = bind(load_function(path), "it")
    assert function.batch == ("solution_strs" in signature)
    given = function(REQUEST, OTHER) if function.batch else function(REQUEST)
    assert given == {name: (ONE | MANY)[name] for name in names}


def test_a_file_that_is_missing_or_cannot_be_imported(tmp_path, reward_file):
    reward_file("", name="my_reward.py")
    message = problem(str(tmp_path / "my_rewrad.py"))
    assert "custom_reward_function.path=" in message and "no such file (looked for" in message
    assert message.endswith("did you mean my_reward.py?")
    for source, error in {
        "import not_installed_anywhere": "ModuleNotFoundError",
        "def compute_score(:": "SyntaxError",
        "1 / 0": "ZeroDivisionError",
        "import sys; sys.exit(3)": "SystemExit",
    }.items():
        message = problem(reward_file(source))
        assert "importing it failed" in message and "my_reward.py" in message and "user_code.py" not in message
        assert message.splitlines()[-1].startswith(error)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "class compute_score: ...",
            r"is a class whose objects cannot be called; give it __call__\(self, ",
        ),
        (
            "def compute_score(solution, answer, extra_info=None): ...",
            "it requires solution, answer, which no row can fill; did you mean solution_str?. "
            "Known names: data_source, solution_str, ground_truth, extra_info. .*reward_kwargs",
        ),
        (
            "def compute_score(solution_strs, ground_truhts): ...",
            "it requires ground_truhts, which no row can fill; did you mean ground_truths?",
        ),
        ("def compute_score(solution_str, /): ...", "solution_str cannot be given by keyword .*; drop the '/'"),
        (
            "def compute_score(solution_strs, ground_truth): ...",
            r"takes both solution_strs \(lists, the batch form\) and ground_truth \(one sample\)",
        ),
    ],
)
def test_what_cannot_be_called_is_refused_with_the_fix(reward_file, source, said):
    assert re.search(said.replace("?", r"\?"), problem(reward_file(source)))


def test_reward_kwargs_are_checked(reward_file):
    path = reward_file("def compute_score(solution_str, weight=1, bias=0): ...")
    message = problem(path, wieght=2)
    assert message.startswith("custom_reward_function.reward_kwargs.wieght: ")
    assert message.endswith("(its own: bias, weight); did you mean weight?")
    for name in ("ground_truth", "ground_truths"):
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
    waiting = Waiting()
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


def test_classes_and_objects_of_every_form(reward_file):
    counting = judge(reward_file, "Counting", start=10, bonus=100)
    assert [counting(REQUEST), counting(REQUEST)] == [111, 112], "constructed once, it keeps its state"
    assert judge(reward_file, "Counting", start=0, step=5)(REQUEST) == 5
    assert judge(reward_file, "Open", a=1, bonus=2)(REQUEST) == {"score": 2, "a": 1}, "arguments go to what names them"
    assert judge(reward_file, "Both", scale=3)(REQUEST) == (3, 3)
    lists, waiting, made = (judge(reward_file, name) for name in ("Lists", "Waiting", "waiting"))
    assert made.concurrent and not lists.concurrent
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
