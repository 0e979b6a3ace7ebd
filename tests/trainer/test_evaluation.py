"""`burnish eval` through the command: the figures of training's validation, what it prints, writes and refuses."""

import errno
import gzip
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import burnish
from burnish.cli.main import main
from burnish.data.files import read_rows, write_parquet
from burnish.data.tasks import arithmetic
from burnish.errors import ConfigError
from burnish.trainer.main_eval import take_threshold

CASES = json.loads((Path(__file__).parents[1] / "golden" / "validation_metrics.json").read_text())
NANO = Path(burnish.__file__).parent / "models" / "nano"
# The response is what the function returns, so that a test says what is scored.
ECHO = "import json\n\ndef compute_score(solution_str, extra_info):\n    return json.loads(solution_str)\n"


def children() -> set[str]:
    """Processes whose parent is this one."""
    return {path.parent.name for path in Path("/proc").glob("[0-9]*/stat") if parent(path) == os.getpid()}


def parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it ended in the meantime
        return -1


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A working directory; no process may be left when a test ends, however its command ended."""
    monkeypatch.chdir(tmp_path)
    before = children()
    yield tmp_path
    assert children() <= before


@pytest.fixture
def run(capsys):
    """Run `burnish eval`; returns (exit code, stdout, stderr)."""

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
    """Write a reward function; returns the key that names it."""

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
    return [
        {"data_source": source, "prompt": "?", "responses": [json.dumps(result) for result in of_row]}
        for of_row in results
    ]


# The same figures as validation in training


@pytest.mark.parametrize("kind", ["pred", "nopred"])
def test_the_recorded_metrics(figures, own, kind):
    """Every recorded case in one file, each with data sources of its own: the seed makes figures independent."""
    rows: dict[tuple, list[str]] = defaultdict(list)
    expected = {}
    for case in CASES:
        if not case["name"].startswith("process_validation/") or not case["name"].endswith(f"/{kind}"):
            continue
        inputs = case["inputs"]
        for i, (source, uid) in enumerate(zip(inputs["data_sources"], inputs["sample_uids"], strict=True)):
            result = {name: values[i] for name, values in inputs["infos_dict"].items()}
            rows[f"{case['name']}/{source}", uid].append(json.dumps(result))
        for source, variables in case["expected"]["metrics"].items():
            # What a function calls `score` is the variable `reward`.
            for name, values in variables.items():
                expected[f"{case['name']}/{source}", "reward" if name == "score" else name] = values
    path = write_lines([{"data_source": s, "prompt": "?", "responses": texts} for (s, _), texts in rows.items()])
    told = figures(path, own())["data_sources"]
    found = {(name, variable): of for name, source in told.items() for variable, of in source["statistics"].items()}
    assert len(expected) >= 16 and set(found) == set(expected)
    for place, statistics in expected.items():
        assert found[place] == pytest.approx(statistics), place


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


# What is told


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
    assert told["file"] == "out.jsonl" and told["scored_by"] == {
        "function": "the built-in scorers",
        "reward_kwargs": {},
    }
    assert (told["rows"], told["responses"], told["scored"]) == (3, 9, 9)
    assert told["failures"] == {"failed": 0, "dropped": 0, "on_error": "drop", "causes": ""}
    about = {name: told["data_sources"]["openai/gsm8k"][name] for name in ("rows", "responses", "core", "mean")}
    assert about == {"rows": 1, "responses": 1, "core": "reward", "mean": 1.0}
    assert told["metrics"]["val-core/openai/gsm8k/reward/mean@1"] == 1.0
    assert not [path for path in Path().iterdir() if path.name.startswith(".")]


def test_names_are_printed_as_they_are(run, own):
    code, out, _ = run(write_lines(echoed([{"score": 1, "[red]x": 2}], source="a[bold]b")), own())
    assert code == 0 and "a[bold]b: 1 row" in out and "[red]x" in out


def test_names_cannot_command_the_terminal_or_forge_a_line(run, own):
    name = "\x1b]0;PWNED\x07\nmine: 9 rows\ud800"
    code, out, err = run(write_lines(echoed([{"score": 1, name: 2}], source=name)), own(), "--fail-under=2")
    assert code == 1 and "\x1b" not in out + err and "\nmine" not in out
    assert "\\x1b]0;PWNED\\x07\\nmine: 9 rows\\ud800: 1 row, 1 response, mean reward 1.0000" in out
    assert "\\x1b]0;PWNED" in err


def test_rows_may_have_different_numbers_of_responses(figures, own):
    """The mean is over rows: a row with many responses does not count for more, one with few is not left out."""
    told = figures(write_lines(echoed([1, 0, 0, 0], [1], [1])), own())["data_sources"]["mine"]
    assert told["statistics"]["reward"]["mean@4"] == 0.25 and told["statistics"]["reward"]["mean@1"] == 1.0
    assert told["mean"] == 0.75 and told["responses_per_row"] == [1, 4]


def test_columns_of_other_names_and_a_gzipped_file(figures):
    rows = [{"q": f"{i}+1?", "meta": {"task": "gsm8k"}, "truth": str(i + 1), "text": f"#### {i}"} for i in (1, 2)]
    rows[1]["text"] = "#### 3"
    Path("out.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    keys = [
        "data.prompt_key=q",
        "data.response_key=text",
        "data.data_source_key=meta.task",
        "data.reward_model_key=truth",
    ]
    told = figures("data.path=out.jsonl.gz", *keys, "data.output_path=deep/er/told.json")
    assert told["data_sources"]["gsm8k"]["mean"] == 0.5
    assert Path("deep/er/told.json").is_file()


def test_a_function_learns_what_it_learns_in_training(figures, own):
    rows = sums([0, 1], finish_reasons=["length", "stop"])
    rows[0]["reward_model"]["hint"] = 5
    rows[0]["extra_info"]["index"] = 7
    key = own(
        "def compute_score(data_source, solution_str, ground_truth, extra_info, scale=1):\n"
        "    assert extra_info['prompt'][0]['role'] == 'user' and data_source == 'burnish/arithmetic'\n"
        "    names = ('num_turns', 'num_tool_calls', 'truncated', 'hint', 'index')\n"
        "    return {'score': scale * (ground_truth in solution_str), 'new_prompts': [{'prompt': 'more'}],\n"
        "            **{name: extra_info[name] for name in names}}\n"
    )
    told = figures(write_lines(rows), key, "+custom_reward_function.reward_kwargs.scale=3")
    assert told["scored_by"] == {"function": "compute_score of mine.py", "reward_kwargs": {"scale": 3}}
    means = {
        name: values["mean@2"] for name, values in told["data_sources"]["burnish/arithmetic"]["statistics"].items()
    }
    assert means == {
        "reward": 1.5, "num_turns": 2, "num_tool_calls": 0, "truncated": 0.5, "hint": 5, "index": 7,
    }  # fmt: skip


def test_whether_a_response_was_cut_is_unknown_where_the_file_does_not_say(figures, own):
    key = own("def compute_score(extra_info):\n    return float(extra_info['truncated'] is None)\n")
    assert figures(write_lines(sums([0])), key)["data_sources"]["burnish/arithmetic"]["mean"] == 1.0


def test_finish_reasons_are_those_of_the_column_responses(figures, own):
    rows = [{**row, "text": ["a", "b"]} for row in sums([0], finish_reasons=["length"])]
    key = own("def compute_score(extra_info):\n    return float(extra_info['truncated'] is None)\n")
    told = figures(write_lines(rows), key, "data.response_key=text")
    assert told["data_sources"]["burnish/arithmetic"]["mean"] == 1.0


def test_built_in_scorers_need_no_prompt(figures):
    rows = [{name: value for name, value in row.items() if name != "prompt"} for row in sums([0, 1])]
    assert figures(write_lines(rows))["data_sources"]["burnish/arithmetic"]["mean"] == 0.5


def test_a_function_learns_that_there_is_no_prompt(run, own):
    key = own("def compute_score(extra_info):\n    return float(extra_info['prompt'] is None)\n")
    code, out, err = run(write_lines([{"responses": "a"}]), key)
    assert code == 0 and "mean reward 1.0000" in out
    assert "out.jsonl: no column 'prompt', so extra_info['prompt'] is None (data.prompt_key)" in err


def test_a_prompt_inside_a_column(run, own):
    key = own("def compute_score(extra_info):\n    return len(extra_info['prompt'][0]['content'])\n")
    path = write_lines([{"meta": {"q": "four"}, "prompts": "not this one", "responses": "a"}])
    assert "mean reward 4.0000" in run(path, key, "data.prompt_key=meta.q")[1]


def test_a_function_of_the_user_needs_neither_data_source_nor_ground_truth(figures, own):
    path = write_lines([{"prompt": "?", "responses": ["abc", "a"]}])
    told = figures(path, own("def compute_score(solution_str):\n    return len(solution_str)\n"))
    assert told["data_sources"]["unknown"]["mean"] == 2.0


def test_metrics_that_are_not_finite_are_null_and_reported(run, own):
    code, out, _ = run(write_lines(echoed([{"score": 1.0, "acc": float("nan")}])), own(), "--fail-under", "0")
    told = json.loads(Path("out.eval.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert told["data_sources"]["mine"]["statistics"] == {"acc": {"mean@1": None}, "reward": {"mean@1": 1.0}}
    assert "not finite, so null in the JSON file: 1 metric, the first is val-core/mine/acc/mean@1" in out
    assert code == 1, "a mean that is not a number is not above the threshold"


# --fail-under


@pytest.mark.parametrize(
    ("words", "code"),
    [([], 0), (["--fail-under", "0.25"], 0), (["--fail-under=0.26"], 1), (["--fail-under", "-1"], 0)],
)
def test_the_exit_code_says_whether_a_mean_is_below(run, own, words, code):
    found, _, err = run(*words, write_lines(echoed([1, 0, 0, 0], [0, 1, 0, 0])), own())
    assert found == code
    assert ("burnish: mine: mean reward 0.25, below --fail-under 0.26" in err) is bool(code)
    assert Path("out.eval.json").is_file(), "the figures are there to look into"


@pytest.mark.parametrize(("score", "count"), [(0.1, 6), (0.7, 3)])
def test_a_mean_at_the_threshold_passes(run, figures, own, score, count):
    path, key = write_lines(echoed(*[[score]] * count)), own()
    assert figures(path, key, f"--fail-under={score}")["data_sources"]["mine"]["mean"] < score, "by its rounding alone"
    assert run(path, key, f"--fail-under={score + 1e-8}")[0] == 1


def test_rounding_does_not_decide_at_0_either(run, own):
    path = write_lines(echoed([0.3], [-0.1], [-0.2]))
    assert run(path, own(), "--fail-under=0")[0] == 0


def test_each_data_source_has_to_pass(run, own):
    rows = [*echoed([1], source="good"), *echoed([{"score": 1, "acc": 0}], source="bad")]
    code, _, err = run(write_lines(rows), own(), "--fail-under", "0.5")
    assert code == 1 and "burnish: bad: mean acc 0, below --fail-under 0.5" in err and "good:" not in err


@pytest.mark.parametrize("text", ["abc", "", "nan", "inf", "data.path=x"])
def test_a_threshold_is_a_number(refuses, text):
    message = refuses("data.path=no.parquet", "--fail-under", text)
    assert f"--fail-under {text}".rstrip() + ": must be a number, for example --fail-under 0.5" in message


def test_the_threshold_is_taken_out_of_the_command():
    assert take_threshold(["a=1", "--fail-under", "0.5", "b=2"]) == (["a=1", "b=2"], 0.5)
    assert take_threshold(["--fail-under=.5"]) == ([], 0.5)
    assert take_threshold(["a=1"]) == (["a=1"], None)
    with pytest.raises(ConfigError, match=r"^--fail-under: must be a number"):
        take_threshold(["a=1", "--fail-under"])


# What is refused, before anything is scored

GOOD = sums([0], [0], [0])
BAD_ROWS = {
    "unknown data source": (
        {"data_source": "openai/gsm9k"},
        ["data_source='openai/gsm9k' has no built-in scorer", "did you mean 'openai/gsm8k'?", "burnish/arithmetic"],
    ),
    "no data source": ({"data_source": None}, ["the row has no data_source", "custom_reward_function.path"]),
    "data source of another type": ({"data_source": 3}, ["field 'data_source' is a int (3), expected text"]),
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
    "data source": (
        "data_source",
        [],
        ["with the data source in data.data_source_key", "custom_reward_function.path="],
    ),
    "ground truth": ("reward_model", [], ["the ground truth in data.reward_model_key", "row 0", "'arithmetic'"]),
    "ground truth by name": ("truth", ["data.reward_model_key=truth"], ["the ground truth in data.reward_model_key"]),
    "data source by name": ("task", ["data.data_source_key=task"], ["with the data source in data.data_source_key"]),
}


@pytest.mark.parametrize(("column", "words", "parts"), BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_columns(refuses, column, words, parts):
    rows = [{name: value for name, value in row.items() if name != column} for row in GOOD]
    write_parquet(rows, "out.parquet")
    message = refuses("data.path=out.parquet", *words)
    assert f"o column '{column}'; the columns are {', '.join(rows[0])}" in message
    assert not [part for part in ["out.parquet", *parts] if part not in message], message


def test_a_named_column_is_asked_for_whoever_scores(refuses, own):
    path = write_lines([{"prompt": "?", "responses": "1"}])
    message = refuses(path, own(), "data.reward_model_key=truth")
    assert "no column 'truth'; the columns are prompt, responses. Name the one with the ground truth" in message
    assert "no column 'task'" in refuses(path, own(), "data.data_source_key=task")


def test_files(refuses, place):
    assert "data file not found: no.parquet" in refuses("data.path=no.parquet")
    Path("out.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 100)[:-20])
    assert "out.jsonl.gz: cannot be read: Compressed file ended before" in refuses("data.path=out.jsonl.gz")
    Path("out.parquet").write_bytes(b"PAR1 no")
    assert "out.parquet: not a readable parquet file" in refuses("data.path=out.parquet")


def test_an_output_that_cannot_be_written(refuses, place):
    path = write_lines(GOOD)
    (place / "folder").mkdir()
    message = refuses(path, "data.output_path=folder")
    assert "data.output_path=folder is a folder; name a file in it: folder/eval.json" in message
    message = refuses(path, "data.output_path=out.jsonl/x.json")
    assert "data.output_path=out.jsonl: cannot write there" in message and "trainer.default" not in message


def test_a_disk_that_is_full_at_the_end(refuses, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = refuses(write_lines(GOOD))
    assert "cannot write out.eval.json: the disk is full" in message and "with data.output_path" in message


def test_plan_and_unknown_keys(refuses):
    assert "--plan is for commands that train" in refuses("data.path=out.parquet", "--plan")
    assert "unknown key 'data.responses_key'; did you mean 'data.response_key'?" in refuses("data.responses_key=x")


# Reward functions that fail

UNUSABLE = {
    "missing": (None, "custom_reward_function.path=mine.py: no such file"),
    "without the function": ("def score(): pass\n", "custom_reward_function.name=compute_score"),
    "wrong signature": ("def compute_score(prediction): return 1\n", "prediction"),
}


@pytest.mark.parametrize(("source", "part"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_function_that_cannot_be_used(refuses, own, source, part):
    key = own(source) if source else "custom_reward_function.path=mine.py"
    assert part in refuses(write_lines(GOOD), key)


FAILING = {
    "raises": ("raise KeyError('lost')", ["KeyError: 'lost'"]),
    "hangs": ("import time; time.sleep(60)", ["no score within reward.timeout=0.3 s"]),
    "returns text": ("return 'good'", ["compute_score of mine.py returned 'good' (str)", "finite number"]),
}


@pytest.mark.parametrize(("body", "parts"), FAILING.values(), ids=FAILING)
def test_a_function_that_always_fails(run, own, body, parts):
    """The run stops at the first failure too many, long before all are tried."""
    path = write_lines(sums(*[[0] * 4] * 10))
    key = own(f"def compute_score(solution_str):\n    {body}\n")
    seconds = 0.3 if "sleep" in body else 60
    code, _, err = run(path, key, f"reward.timeout={seconds}", "reward.retries=0")
    message = err[err.index("burnish: error: ") :]
    assert code == 2 and "stopped after scoring 3 of" in message and "reward.max_failure_ratio=0.05" in message
    assert not [part for part in parts if part not in message], message
    assert "burnish/trainer" not in message and not Path("out.eval.json").exists()


SOMETIMES = "def compute_score(solution_str):\n    return 1 / (solution_str != 'bad')\n"


def test_a_response_that_cannot_be_scored_is_left_out_and_reported(run, own):
    path = write_lines([{"prompt": "?", "responses": ["a", "b", "bad"]}, {"prompt": "?", "responses": ["bad"]}])
    words = [path, own(SOMETIMES), "reward.max_failure_ratio=0.5", "reward.retries=0"]
    code, out, err = run(*words)
    assert code == 0
    assert "2 of 4 responses could not be scored and are skipped" in err and "ZeroDivisionError" in err
    assert "unknown: 2 rows, 1 to 3 responses each, 2 of 4 skipped, mean reward 1.0000" in out
    told = json.loads(Path("out.eval.json").read_text())
    assert (told["rows"], told["responses"], told["scored"]) == (2, 4, 2)
    assert (told["failures"]["failed"], told["failures"]["dropped"]) == (2, 2)
    assert "first uid 0, row index 0" in told["failures"]["causes"], "the number of the row"
    assert "    response: bad" in told["failures"]["causes"] and "    response: bad" in err
    assert list(told["data_sources"]["unknown"]["statistics"]["reward"])[:2] == ["mean@2", "std@2"]
    code, out, err = run(*words, "reward.on_error=zero")
    assert code == 0 and "2 of 4 responses could not be scored and got 0" in err
    assert json.loads(Path("out.eval.json").read_text())["data_sources"]["unknown"]["mean"] == pytest.approx(1 / 3)


def test_responses_in_reports_cannot_command_the_terminal(run, own):
    rows = [{"prompt": "?", "responses": ["good"] * 19 + ["\x1b]0;PWNED\x07" + "x" * 500]}]
    code, _, err = run(write_lines(rows), own("def compute_score(solution_str): return 1 / (solution_str == 'good')"))
    assert code == 0 and "\x1b" not in err
    assert "response: \\x1b]0;PWNED\\x07" + "x" * 190 + "…" in err


# Other ways to be scored


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


def test_failures_of_a_function_that_takes_lists_stop_the_run(run, own):
    rows = [{"prompt": "?", "responses": ["a"] * 10}]
    code, _, err = run(write_lines(rows), own("def compute_score(solution_strs): return [1.0]"))
    assert code == 2 and "returned 1 results for 10 samples" in err


def test_a_class_with_state(figures, own):
    key = own(
        "class Judge:\n"
        "    def __init__(self, scale): self.scale = scale\n"
        "    def __call__(self, solution_str): return self.scale * len(solution_str)\n"
    )
    path = write_lines([{"prompt": "?", "responses": "abc"}])
    told = figures(path, key, "custom_reward_function.name=Judge", "+custom_reward_function.reward_kwargs.scale=2")
    assert told["data_sources"]["unknown"]["mean"] == 6.0


def test_programs_are_run(figures):
    rows = [{"data_source": "mbpp", "prompt": "?", "reward_model": {"ground_truth": '["assert f(2) == 4"]'}}]
    rows[0]["responses"] = [f"```python\ndef f(x):\n    return x {op} 2\n```" for op in "*-"]
    told = figures(write_lines(rows), "reward_model.sandbox.allow_unsafe=true")["data_sources"]["mbpp"]
    assert told["mean"] == 0.5 and told["core"] == "acc"


def test_rows_that_only_a_reward_model_scores(refuses, figures, own):
    row = {"data_source": "chat", "prompt": "?", "responses": "words", "reward_model": {"style": "model"}}
    message = refuses(write_lines([row]))
    assert "out.jsonl, row 0" in message and "`burnish eval` scores by rule. Leave such rows out" in message
    told = figures(write_lines([row]), own("def compute_score(solution_str): return 0.5"))
    assert told["data_sources"]["chat"]["mean"] == 0.5


def test_rows_of_style_both_are_scored_by_their_rule(run):
    rows = sums([0, 1])
    rows[0]["reward_model"]["style"] = "both"
    code, out, err = run(write_lines(rows))
    assert code == 0 and "mean acc 0.5000" in out
    assert "rows of reward_model.style both are scored by their rule alone" in err


def test_a_ground_truth_of_the_wrong_type_is_refused(refuses):
    rows = sums([0])
    rows[0]["reward_model"]["ground_truth"] = "seven"
    assert "reward_model.ground_truth='seven': arithmetic needs an integer" in refuses(write_lines(rows))


def test_a_data_source_without_any_score_does_not_pass(run, own):
    rows = [{"prompt": "?", "data_source": name, "responses": [name]} for name in ("good", "bad")]
    words = [write_lines(rows), own(SOMETIMES), "reward.max_failure_ratio=0.5", "reward.retries=0"]
    code, out, err = run(*words, "--fail-under=0")
    assert code == 1 and "burnish: bad: no score, below --fail-under 0" in err
    assert "bad: 1 row, 1 response, 1 of 1 skipped, no score" in out
    told = json.loads(Path("out.eval.json").read_text())["data_sources"]
    assert told["bad"]["mean"] is None and told["bad"]["statistics"] == {} and told["good"]["mean"] == 1.0


# The command


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


def test_the_configuration_is_printed_instead(run):
    code, out, _ = run("data.path=no.parquet", "--cfg", "job", "--fail-under", "0.5")
    assert code == 0 and "output_path: no.eval.json" in out


def test_the_help_shows_an_example_and_the_flag(run):
    code, out, _ = run("--help")
    assert code == 0 and "burnish eval \\\n    data.path=out.parquet" in out and "--fail-under X" in out


def test_facts_of_trajectories_come_from_the_file(run, own):
    function = (
        "def compute_score(extra_info):\n"
        "    facts = {name: extra_info[name] for name in ('num_turns', 'num_tool_calls')}\n"
        "    return {'score': 1.0, **facts, 'cut': str(extra_info['truncated'])}\n"
    )
    beside = {"num_turns": [4, 2], "num_tool_calls": [3, 0], "finish_reasons": ["length", "stop"]}
    rows = [{"prompt": "q", "responses": ["a", "b"], **beside}, {"prompt": "q", "responses": ["c"]}]
    code, _, err = run(write_lines(rows), own(function), "data.scored_path=scored.parquet")
    assert code == 0, err
    told = [json.loads(text) for row in read_rows("scored.parquet") for text in row["reward_info"]]
    assert told == [
        {"num_turns": 4, "num_tool_calls": 3, "cut": "True"},
        {"num_turns": 2, "num_tool_calls": 0, "cut": "False"},
        {"num_turns": 2, "num_tool_calls": 0, "cut": "None"},
    ]


def test_the_score_of_each_response_can_be_kept(run, own):
    rows = [{"prompt": "q", "responses": [json.dumps({"score": i, "x": i}) for i in range(20)], "kept": {"a": 1}}]
    rows[0]["responses"][3] = "broken"
    code, out, err = run(write_lines(rows), own(), "data.scored_path=scored.parquet", "reward.retries=0")
    assert code == 0 and "the score of each response is in scored.parquet" in out, err
    (row,) = read_rows("scored.parquet")
    assert row["scores"] == [float(i) if i != 3 else None for i in range(20)] and row["kept"] == {"a": 1}
    assert [None if text is None else json.loads(text) for text in row["reward_info"]][2:4] == [{"x": 2}, None]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("out.jsonl", "is the file of responses itself"),
        ("scored.json", "becomes a parquet file"),
        ("taken/scored.parquet", "data.scored_path"),
    ],
)
def test_a_wrong_place_for_scores_is_refused(refuses, own, path, words):
    Path("taken").write_text("a file where a folder should be")
    message = refuses(write_lines([{"prompt": "q", "responses": ["1"]}]), own(), f"data.scored_path={path}")
    assert words in message
