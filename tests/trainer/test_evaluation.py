"""`burnish eval` through the command: the figures of training's validation, what it prints, writes and refuses."""

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import burnish
from burnish.cli.main import main
from burnish.data.files import read_rows, write_parquet
from burnish.data.tasks import arithmetic
from tests.rewards.conftest import children
from tests.trainer.conftest import NANO

# The response is what the function returns, so that a test says what is scored.
ECHO = "import json\n\ndef compute_score(solution_str, extra_info):\n    return json.loads(solution_str)\n"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A working directory; no process may be left when a test ends, however its command ended."""
    monkeypatch.chdir(tmp_path)
    before = children()
    yield tmp_path
    assert children() <= before


@pytest.fixture
def run(capsys):
    def run_command(*words: str) -> tuple[int, str, str]:
        code = main(["eval", *words])
        return code, *capsys.readouterr()

    return run_command


@pytest.fixture
def figures(run):
    """Run a command that must succeed; returns the JSON that it writes."""

    def read(*words: str) -> dict:
        code, out, err = run(*words)
        assert code == 0, err
        return json.loads(Path(out.rpartition("all results are in ")[2].strip()).read_text())

    return read


@pytest.fixture
def refuses(run):
    """Run a command that must end as a user's mistake, before it has written anything; returns the message."""

    def refused(*words: str) -> str:
        code, _, err = run(*words)
        assert code == 2 and "Traceback" not in err, err
        assert not list(Path().glob("*.eval.json"))
        return err[err.index("burnish: error: ") :]

    return refused


@pytest.fixture
def own(place):
    def write(source: str = ECHO) -> str:
        (place / "mine.py").write_text(source)
        return "custom_reward_function.path=mine.py"

    return write


def sums(*answers: list[int | str], **columns) -> list[dict]:
    """Rows of arithmetic; an integer is how far the answer is off, a text the whole response."""
    rows = arithmetic.rows("test", len(answers), seed=0)
    for row, given in zip(rows, answers, strict=True):
        right = int(row["reward_model"]["ground_truth"])
        row["responses"] = [f"answer: {right + a}" if isinstance(a, int) else a for a in given]
        row |= columns
    return rows


def write_lines(rows: list[dict], path: str = "out.jsonl") -> str:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.path={path}"


def echoed(*results: list, source: str = "mine") -> list[dict]:
    """Rows whose responses are the results that ECHO returns."""
    return [{"data_source": source, "prompt": "?", "responses": [*map(json.dumps, of_row)]} for of_row in results]


def test_the_same_as_a_validation_of_the_same_answers(figures, own, capsys):
    """To the last digit, also with scores that float32 does not hold."""
    key = own(
        "from burnish.rewards.scores import arithmetic\n"
        "def compute_score(solution_str, ground_truth):\n"
        "    found = arithmetic.compute_score(solution_str, ground_truth)\n"
        "    return {'score': 0.7 if found['acc'] else 0.1, 'format': found['format'], 'pred': found['pred']}\n"
    )
    questions = arithmetic.rows("test", 6, seed=3)
    write_parquet(questions, "test.parquet")
    keys = [
        "data.train_files=test.parquet data.val_files=test.parquet data.train_batch_size=6 data.max_prompt_length=32",
        f"data.max_response_length=64 actor_rollout_ref.model.path={NANO} algorithm.adv_estimator=grpo",
        "actor_rollout_ref.rollout.val_kwargs.n=4 actor_rollout_ref.rollout.val_kwargs.do_sample=true",
        "actor_rollout_ref.rollout.val_kwargs.temperature=1.0 trainer.val_only=true trainer.device=cpu",
        "trainer.default_local_dir=run trainer.logger=jsonl",
    ]
    code = main(["ppo", key, *" ".join(keys).split()])
    assert code == 0, capsys.readouterr().err
    capsys.readouterr()
    (line,) = [json.loads(text) for text in Path("run/metrics.jsonl").read_text().splitlines()]
    for answer in map(json.loads, Path("run/validation/0.jsonl").read_text().splitlines()):
        questions[answer["uid"]].setdefault("responses", []).append(answer["response"].removesuffix("<|end|>"))
    write_parquet(questions, "out.parquet")
    told = figures("data.path=out.parquet", key)
    core = {name: value for name, value in line.items() if name.startswith("val-core/")}
    mean = core["val-core/burnish/arithmetic/reward/mean@4"]
    assert 0.11 < mean < 0.69, "some answers are right, so that figures can differ"
    assert set(core) >= {f"val-core/burnish/arithmetic/reward/{name}" for name in ("best@4/mean", "maj@4/mean")}
    assert told["metrics"] == core
    statistics = told["data_sources"]["burnish/arithmetic"]["statistics"]
    named = {f"val-aux/burnish/arithmetic/{v}/{s}": value for v, of in statistics.items() for s, value in of.items()}
    assert {name: value for name, value in line.items() if name.startswith("val-aux/")}.items() <= named.items()


def test_tables_and_json(figures, run):
    rows = sums([0, 1, 0, 0], [2, 2, 2, "no idea"])
    rows.append({"data_source": "openai/gsm8k", "prompt": "3+4?", "reward_model": {"ground_truth": "7"}})
    rows[-1]["responses"] = "#### 7"
    code, out, err = run(write_lines(rows))
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert out.startswith("out.jsonl: 3 rows, 9 responses, scored by the built-in scorers\n")
    assert "burnish/arithmetic: 2 rows, 4 responses each, mean acc 0.3750" in out
    assert "openai/gsm8k: 1 row, 1 response, mean reward 1.0000" in out
    assert ["variable", "@k", "mean", "std", "best", "worst", "maj"] in lines
    told = json.loads(Path("out.eval.json").read_text())
    acc = told["data_sources"]["burnish/arithmetic"]["statistics"]["acc"]
    of_two = ["acc", "2", *(f"{acc[name]:.4f}" for name in ("best@2/mean", "worst@2/mean", "maj@2/mean"))]
    of_all = ["4", "0.3750", *(f"{acc[n]:.4f}" for n in ("std@4", "best@4/mean", "worst@4/mean", "maj@4/mean"))]
    assert lines.index(of_all) == lines.index(of_two) + 1
    assert ["format", "4", "0.8750"] in [line[:3] for line in lines], "other variables at the full size only"
    assert "scoring: 9/9 responses" in err
    assert told["file"] == "out.jsonl"
    assert told["scored_by"] == {"function": "the built-in scorers", "reward_kwargs": {}}
    assert (told["rows"], told["responses"], told["scored"]) == (3, 9, 9)
    assert told["failures"] == {"failed": 0, "dropped": 0, "on_error": "drop", "causes": ""}
    about = {name: told["data_sources"]["openai/gsm8k"][name] for name in ("rows", "responses", "core", "mean")}
    assert about == {"rows": 1, "responses": 1, "core": "reward", "mean": 1.0}
    assert told["metrics"]["val-core/openai/gsm8k/reward/mean@1"] == 1.0
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_names_are_printed_as_they_are_but_cannot_command_the_terminal_or_forge_a_line(run, own):
    name = "[red]\x1b]0;PWNED\x07\nmine: 9 rows\ud800"
    code, out, err = run(write_lines(echoed([{"score": 1, name: 2}], source=name)), own(), "--fail-under=2")
    assert code == 1 and "\x1b" not in out + err and "\nmine" not in out
    assert "[red]\\x1b]0;PWNED\\x07\\nmine: 9 rows\\ud800: 1 row, 1 response, mean reward 1.0000" in out
    assert out.count("[red]\\x1b") == 2 and "\\x1b]0;PWNED" in err


def test_rows_may_have_different_numbers_of_responses(figures, own):
    """The mean is over rows: a row with many responses does not count for more, one with few is not left out."""
    told = figures(write_lines(echoed([1, 0, 0, 0], [1], [1])), own())["data_sources"]["mine"]
    assert told["statistics"]["reward"]["mean@4"] == 0.25 and told["statistics"]["reward"]["mean@1"] == 1.0
    assert told["mean"] == 0.75 and told["responses_per_row"] == [1, 4]


def test_columns_of_other_names_and_a_gzipped_file(figures):
    rows = [{"q": f"{i}+1?", "meta": {"task": "gsm8k"}, "truth": str(i + 1), "text": f"#### {i}"} for i in (1, 2)]
    rows[1]["text"] = "#### 3"
    Path("out.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    names = {"prompt": "q", "response": "text", "data_source": "meta.task", "reward_model": "truth"}
    keys = [f"data.{key}_key={name}" for key, name in names.items()]
    told = figures("data.path=out.jsonl.gz", *keys, "data.output_path=deep/er/told.json")
    assert told["data_sources"]["gsm8k"]["mean"] == 0.5
    assert Path("deep/er/told.json").is_file()


def test_a_function_learns_what_it_learns_in_training(run, own):
    """As far as the file has it: of the second row it is not known whether the response was cut."""
    beside = {"num_turns": [4, 2], "num_tool_calls": [3, 0], "finish_reasons": ["length", "stop"]}
    rows = sums([0, 1], [0])
    rows[0] |= beside
    for row in rows:
        row["reward_model"]["hint"], row["extra_info"]["index"] = 5, 7
    key = own(
        "def compute_score(data_source, solution_str, ground_truth, extra_info, scale=1):\n"
        "    assert extra_info['prompt'][0]['role'] == 'user' and data_source == 'burnish/arithmetic'\n"
        "    names = ('num_turns', 'num_tool_calls', 'hint', 'index')\n"
        "    return {'score': scale * (ground_truth in solution_str), 'new_prompts': [{'prompt': 'more'}],\n"
        "            **{name: extra_info[name] for name in names}, 'cut': str(extra_info['truncated'])}\n"
    )
    scale = "+custom_reward_function.reward_kwargs.scale=3"
    code, _, err = run(write_lines(rows), key, scale, "data.scored_path=scored.parquet")
    assert code == 0, err
    by = json.loads(Path("out.eval.json").read_text())["scored_by"]
    assert by == {"function": "compute_score of mine.py", "reward_kwargs": {"scale": 3}}
    scored = read_rows("scored.parquet")
    assert [row["scores"] for row in scored] == [[3, 0], [3]]
    facts = [json.loads(text) for row in scored for text in row["reward_info"]]
    assert [fact.pop("cut") for fact in facts] == ["True", "False", "None"]
    turns = [(4, 3), (2, 0), (2, 0)]
    assert facts == [{"num_turns": n, "num_tool_calls": calls, "hint": 5, "index": 7} for n, calls in turns]


OF_ROWS = {
    "no prompt": ({"responses": "a"}, [], "float(extra_info['prompt'] is None)", 1),
    "a prompt inside a column": (
        {"meta": {"q": "four"}, "prompts": "not this one", "responses": "a"},
        ["data.prompt_key=meta.q"],
        "len(extra_info['prompt'][0]['content'])",
        4,
    ),
    "neither data source nor ground truth": ({"prompt": "?", "responses": ["abc", "a"]}, [], "len(solution_str)", 2),
    "finish reasons of another column": (
        {"prompt": "?", "responses": ["a"], "finish_reasons": ["length"], "text": ["a", "b"]},
        ["data.response_key=text"],
        "float(extra_info['truncated'] is None)",
        1,
    ),
    "only a reward model": ({"prompt": "?", "responses": "a", "reward_model": {"style": "model"}}, [], "0.5", 0.5),
}


@pytest.mark.parametrize(("row", "keys", "returned", "mean"), OF_ROWS.values(), ids=OF_ROWS)
def test_a_function_of_the_user_scores(run, own, row, keys, returned, mean):
    key = own(f"def compute_score(solution_str, extra_info):\n    return {returned}\n")
    code, out, err = run(write_lines([row]), key, *keys)
    assert code == 0 and f"mean reward {mean:.4f}" in out and out.count("unknown: 1 row") == 1
    told = "out.jsonl: no column 'prompt', so extra_info['prompt'] is None (data.prompt_key)" in err
    assert told == ("prompt" not in row and not keys)


def test_metrics_that_are_not_finite_are_null_and_reported(run, own):
    code, out, _ = run(write_lines(echoed([{"score": 1.0, "acc": float("nan")}])), own(), "--fail-under", "0")
    told = json.loads(Path("out.eval.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert told["data_sources"]["mine"]["statistics"] == {"acc": {"mean@1": None}, "reward": {"mean@1": 1.0}}
    assert "not finite, so null in the JSON file: 1 metric, the first is val-core/mine/acc/mean@1" in out
    assert code == 1, "a mean that is not a number is not above the threshold"


@pytest.mark.parametrize(
    ("words", "code"), [([], 0), (["--fail-under", "0.25"], 0), (["--fail-under=0.26"], 1), (["--fail-under", "-1"], 0)]
)
def test_the_exit_code_says_whether_a_mean_is_below(run, own, words, code):
    found, _, err = run(*words, write_lines(echoed([1, 0, 0, 0], [0, 1, 0, 0])), own())
    assert found == code
    assert ("burnish: mine: mean reward 0.25, below --fail-under 0.26" in err) is bool(code)
    assert Path("out.eval.json").is_file(), "the figures are there to look into"


@pytest.mark.parametrize("scores", [[0.1] * 6, [0.7] * 3, [0.3, -0.1, -0.2]], ids=str)
def test_a_mean_at_the_threshold_passes(run, figures, own, scores):
    path, key, mean = write_lines(echoed(*([score] for score in scores))), own(), round(sum(scores) / len(scores), 9)
    assert figures(path, key, f"--fail-under={mean}")["data_sources"]["mine"]["mean"] < mean, "by its rounding alone"
    assert run(path, key, f"--fail-under={mean + 1e-8}")[0] == 1


def test_each_data_source_has_to_pass(run, own):
    results = {"good": 1, "bad": {"score": 1, "acc": 0}, "none": None}
    rows = [row for source, result in results.items() for row in echoed([result], source=source)]
    words = [write_lines(rows), own(), "reward.max_failure_ratio=0.5", "reward.retries=0"]
    code, out, err = run(*words, "--fail-under", "0.5")
    assert code == 1 and "burnish: bad: mean acc 0, below --fail-under 0.5" in err and "good:" not in err
    assert "burnish: none: no score, below --fail-under 0.5" in err
    assert "none: 1 row, 1 response, 1 of 1 skipped, no score" in out
    told = json.loads(Path("out.eval.json").read_text())["data_sources"]
    assert told["none"]["mean"] is None and told["none"]["statistics"] == {} and told["good"]["mean"] == 1.0


@pytest.mark.parametrize("text", ["abc", "", "nan", "inf", "data.path=x"])
def test_a_threshold_is_a_number(refuses, text):
    message = refuses("data.path=no.parquet", "--fail-under", text)
    assert f"--fail-under {text}".rstrip() + ": must be a number, for example --fail-under 0.5" in message


GOOD = sums([0], [0], [0])
BAD_ROWS = {
    "unknown data source": (
        {"data_source": "openai/gsm9k"},
        ["data_source='openai/gsm9k' has no built-in scorer", "did you mean 'openai/gsm8k'?", "burnish/arithmetic"],
    ),
    "no data source": ({"data_source": None}, ["the row has no data_source", "custom_reward_function.path"]),
    "data source of another type": ({"data_source": 3}, ["field 'data_source' is a int (3), expected text"]),
    "only a reward model": ({"reward_model": {"style": "model"}}, ["`burnish eval` scores by rule. Leave such rows"]),
    "no ground truth": ({"reward_model": {"style": "rule"}}, ["reward_model.ground_truth is missing"]),
    "no prompt": ({"prompt": None}, ["field 'prompt' is missing or null"]),
    "no responses": ({"responses": None}, ["column 'responses' (data.response_key) is missing or null"]),
    "empty list": ({"responses": []}, ["column 'responses' (data.response_key) is an empty list"]),
    "a number": ({"responses": 7}, ["column 'responses' (data.response_key) holds a int (7)", "a list of texts"]),
    "null among texts": ({"responses": ["a", None]}, ["response 1 (the first is 0) is null, expected text"]),
    "mixed types": ({"responses": ["a", 7]}, ["response 1 (the first is 0) is a int (7), expected text"]),
    "finish reasons": (
        {"finish_reasons": ["stop", "stop"]},
        ["column 'finish_reasons' must hold an entry for each of the 1 responses", "drop the column"],
    ),
}


@pytest.mark.parametrize(("changes", "parts"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows(refuses, monkeypatch, changes, parts):
    monkeypatch.setattr("burnish.trainer.evaluation.score", lambda *_: pytest.fail("something was scored"))
    message = refuses(write_lines([GOOD[0], GOOD[1], {**GOOD[2], **changes}]))
    assert "out.jsonl, row 2 (the first is 0): " in message
    assert not [part for part in parts if part not in message], message


BAD_COLUMNS = {
    "responses": ("responses", [], ["Name the one with the responses in data.response_key"]),
    "prompts by name": ("question", ["data.prompt_key=question"], ["the one with the prompts in data.prompt_key"]),
    "data source": ("data_source", [], ["the data source in data.data_source_key", "custom_reward_function.path="]),
    "ground truth": ("reward_model", [], ["the ground truth in data.reward_model_key", "row 0", "'arithmetic'"]),
    "ground truth by name": ("truth", ["data.reward_model_key=truth"], ["the ground truth in data.reward_model_key"]),
    "data source by name": ("task", ["data.data_source_key=task"], ["with the data source in data.data_source_key"]),
}


@pytest.mark.parametrize(("column", "words", "parts"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_columns(refuses, own, column, words, parts):
    rows = [{name: value for name, value in row.items() if name != column} for row in GOOD]
    write_parquet(rows, "out.parquet")
    message = refuses("data.path=out.parquet", *words)
    if words and column != "question":
        assert f"no column '{column}'" in refuses("data.path=out.parquet", *words, own()), "whoever scores"
    assert f"o column '{column}'; the columns are {', '.join(rows[0])}" in message
    assert not [part for part in ["out.parquet", *parts] if part not in message], message


def test_files_plan_and_unknown_keys(refuses, place):
    assert "--plan is for commands that train" in refuses("data.path=out.parquet", "--plan")
    assert "unknown key 'data.responses_key'; did you mean 'data.response_key'?" in refuses("data.responses_key=x")
    assert "data file not found: no.parquet" in refuses("data.path=no.parquet")
    Path("out.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 100)[:-20])
    assert "out.jsonl.gz: cannot be read: Compressed file ended before" in refuses("data.path=out.jsonl.gz")
    message = refuses(write_lines(GOOD), "custom_reward_function.path=mine.py")
    assert "custom_reward_function.path=mine.py: no such file" in message


def test_an_output_that_cannot_be_written(refuses, place):
    path = write_lines(GOOD)
    (place / "folder").mkdir()
    message = refuses(path, "data.output_path=folder")
    assert "data.output_path=folder is a folder; name a file in it: folder/eval.json" in message
    message = refuses(path, "data.output_path=out.jsonl/x.json")
    assert "data.output_path=out.jsonl: cannot write there" in message and "trainer.default" not in message
    assert "is the file of responses itself" in refuses(path, "data.scored_path=out.jsonl")
    assert "becomes a parquet file" in refuses(path, "data.scored_path=scored.json")
    assert "data.scored_path" in refuses(path, "data.scored_path=out.jsonl/scored.parquet")


def test_a_disk_that_is_full_at_the_end(refuses, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = refuses(write_lines(GOOD))
    assert "cannot write out.eval.json: the disk is full" in message and "with data.output_path" in message


def test_a_function_that_always_fails(run, own):
    path = write_lines(sums(*[[0] * 4] * 10))
    code, _, err = run(path, own("def compute_score(solution_str):\n    raise KeyError('lost')\n"), "reward.retries=0")
    message = err[err.index("burnish: error: ") :]
    assert code == 2 and "stopped after scoring 3 of" in message and "reward.max_failure_ratio=0.05" in message
    assert "KeyError: 'lost'" in message and "burnish/trainer" not in message and not Path("out.eval.json").exists()
    code, _, err = run(path, own("def compute_score(solution_strs): return [1.0]"))
    assert code == 2 and "returned 1 results for 40 samples" in err


BAD = "\x1b]0;PWNED\x07" + "x" * 500  # a hostile response, too


def test_a_response_that_cannot_be_scored_is_left_out_and_reported(run, own):
    path = write_lines([{"prompt": "?", "responses": ["a", "b", BAD]}, {"prompt": "?", "responses": [BAD]}])
    sometimes = own("def compute_score(solution_str):\n    return 1 / (not solution_str.endswith('xxx'))\n")
    words = [path, sometimes, "reward.max_failure_ratio=0.5", "reward.retries=0"]
    code, out, err = run(*words)
    assert code == 0
    assert "2 of 4 responses could not be scored and are skipped" in err and "ZeroDivisionError" in err
    assert "unknown: 2 rows, 1 to 3 responses each, 2 of 4 skipped, mean reward 1.0000" in out
    told = json.loads(Path("out.eval.json").read_text())
    assert (told["rows"], told["responses"], told["scored"]) == (2, 4, 2)
    assert (told["failures"]["failed"], told["failures"]["dropped"]) == (2, 2)
    assert "first uid 0, row index 0" in told["failures"]["causes"], "the number of the row"
    shown = "    response: \\x1b]0;PWNED\\x07" + "x" * 190 + "…"
    assert shown in told["failures"]["causes"] and shown in err and "\x1b" not in err
    assert list(told["data_sources"]["unknown"]["statistics"]["reward"])[:2] == ["mean@2", "std@2"]
    code, out, err = run(*words, "reward.on_error=zero")
    assert code == 0 and "2 of 4 responses could not be scored and got 0" in err
    assert json.loads(Path("out.eval.json").read_text())["data_sources"]["unknown"]["mean"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("form", ["def", "async def"])
def test_a_function_that_takes_lists(figures, own, monkeypatch, form):
    monkeypatch.setattr("burnish.trainer.evaluation.BATCH", 4)
    key = own(
        f"{form} compute_score(solution_strs, extra_infos):\n"
        "    assert all('prompt' in info for info in extra_infos)\n"
        "    return [{'score': len(text), 'of': len(solution_strs)} for text in solution_strs]\n"
    )
    told = figures(write_lines([{"prompt": "?", "responses": ["abc"] * 4}, {"prompt": "?", "responses": ["a"]}]), key)
    statistics = told["data_sources"]["unknown"]["statistics"]
    assert (statistics["reward"]["mean@4"], statistics["reward"]["mean@1"]) == (3.0, 1.0)
    assert (statistics["of"]["mean@4"], statistics["of"]["mean@1"]) == (4, 1), "calls of at most 4"


def test_programs_are_run(figures):
    rows = [{"data_source": "mbpp", "prompt": "?", "reward_model": {"ground_truth": '["assert f(2) == 4"]'}}]
    rows[0]["responses"] = [f"```python\ndef f(x):\n    return x {op} 2\n```" for op in "*-"]
    told = figures(write_lines(rows), "reward_model.sandbox.allow_unsafe=true")["data_sources"]["mbpp"]
    assert told["mean"] == 0.5 and told["core"] == "acc"


def test_rows_of_style_both_are_scored_by_their_rule(run):
    rows = sums([0, 1])
    rows[0]["reward_model"]["style"] = "both"
    del rows[0]["prompt"]  # which no built-in scorer reads
    code, out, err = run(write_lines(rows))
    assert code == 0 and "mean acc 0.5000" in out
    assert "rows of reward_model.style both are scored by their rule alone" in err


def test_it_runs_as_a_module_without_torch(place):
    """As users type it; the built-in scorers and the statistics need no torch."""
    write_lines(GOOD)
    program = (
        "import runpy, sys\n"
        "sys.argv[1:] = ['data.path=out.jsonl', '--fail-under', '1.1']\n"
        "try:\n"
        "    runpy.run_module('burnish.trainer.main_eval', run_name='__main__')\n"
        "finally:\n"
        "    print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    paths = [str(Path(burnish.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "mean acc 1.0000" in done.stdout and done.stdout.rstrip().endswith("[]")


def test_the_configuration_or_the_help_is_printed_instead(run):
    code, out, _ = run("data.path=no.parquet", "--cfg", "job", "--fail-under", "0.5")
    assert code == 0 and "output_path: no.eval.json" in out
    code, out, _ = run("--help")
    assert code == 0 and "burnish eval \\\n    data.path=out.parquet" in out and "--fail-under X" in out


def test_the_score_of_each_response_can_be_kept(run, own):
    rows = [{"prompt": "q", "responses": [json.dumps({"score": i, "x": i}) for i in range(20)], "kept": {"a": 1}}]
    rows[0]["responses"][3] = "broken"
    code, out, err = run(write_lines(rows), own(), "data.scored_path=scored.parquet", "reward.retries=0")
    assert code == 0 and "the score of each response is in scored.parquet" in out, err
    (row,) = read_rows("scored.parquet")
    assert row["scores"] == [float(i) if i != 3 else None for i in range(20)] and row["kept"] == {"a": 1}
    assert [None if text is None else json.loads(text) for text in row["reward_info"]][2:4] == [{"x": 2}, None]
