"""`burnish.train` and `burnish.sft`: rows and functions of this program in, a run folder and a `Run` out."""

import json
import logging
import math
import multiprocessing
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import burnish
from burnish.config import PPOConfig
from burnish.errors import BurnishError, ConfigError, DataError

NANO = "burnish/models/nano"
ROWS = [
    {"prompt": "565+344=?", "answer": "909", "level": "sum"},
    {"prompt": [{"role": "user", "content": "730-219=?"}], "answer": "511", "level": "difference"},
]
SMALL = {"model": NANO, "n": 4, "prompt_length": 16, "response_length": 48}


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of three steps with two functions of this test, of which the callback stops the last."""
    seen, levels, lines = [], [], []
    before = (threads(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))

    def right(solution_str, ground_truth, extra_info):
        levels.append(extra_info["level"])
        return float(solution_str.strip().endswith(ground_truth))

    async def short(solution_str):
        return -len(solution_str) / 100

    def on_step(step):
        seen.append((step.number, step.metrics["critic/score/mean"], len(step.samples(worst=3))))
        if step.number == 2:
            step.stop()

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    handler = Lines()
    logging.getLogger("burnish").addHandler(handler)
    logging.getLogger("burnish").setLevel("INFO")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("python"))
        run = burnish.train(
            data=ROWS, reward={"right": right, "short": (short, 0.5)}, steps=3, on_step=on_step, **SMALL
        )
    run.folder = folder / run.folder
    after = (threads(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    logging.getLogger("burnish").removeHandler(handler)
    return run, seen, levels, lines, before, after


def test_rows_and_functions_of_a_program_train(trained):
    run, seen, levels, lines, _, _ = trained
    metrics = run.metrics
    assert metrics["step"] == [1, 2]
    for score, right, short in zip(*(metrics[name] for name in CURVES), strict=True):
        assert score == pytest.approx(right + 0.5 * short)
    assert [(number, score) for number, score, _ in seen] == [*zip((1, 2), metrics["critic/score/mean"], strict=True)]
    assert set(levels) == {"sum", "difference"}  # other columns of a row are its extra_info
    assert len([line for line in lines if "runs in this" in line]) == 1
    assert run.config.algorithm.adv_estimator == "grpo" and run.config.data.train_batch_size == 2


CURVES = ("critic/score/mean", "reward/right/mean", "reward/short/mean")


def test_process_is_as_it_was_before(trained):
    *_, before, after = trained
    assert after == before and not multiprocessing.active_children()


def test_run_shows_samples_plot_and_model(trained):
    run = burnish.Run(trained[0].folder)  # as one that was opened later
    assert run.folder.name == "run-1" and run.step == 2
    assert run.model == run.folder / "global_step_2" and (run.model / "config.json").is_file()
    worst = run.samples(step=1, worst=3)
    scores = sorted(row["score"] for row in run.samples(step=1))
    assert len(scores) == 8 and [row["score"] for row in worst] == scores[:3]
    assert run.plot()._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(DataError, match="no samples of step 9 .* there are 1 to 2"):
        run.samples(step=9)


def test_metrics_and_samples_are_tables_for_terminals_and_notebooks(trained):
    run = trained[0]
    assert repr(run.metrics).splitlines()[0].split()[:2] == ["step", "reward"]
    assert "<th" in run.metrics._repr_html_() and len(run.metrics) > 50
    assert math.isnan(burnish.Run(run.folder).metrics.get("val-core/x", [math.nan])[0])
    html = burnish.api.table.Rows([{"prompt": "<b>", "score": 0.5}])._repr_html_()
    assert "&lt;b&gt;" in html and "0.5" in html
    assert "\x1b" not in repr(burnish.api.table.Rows([{"\x1b[2J": "\x1b[31m"}]))


def test_same_name_resumes_a_stopped_run(trained, monkeypatch):
    run = trained[0]
    monkeypatch.chdir(run.folder.parents[2])
    steps = []
    again = burnish.train(
        data=ROWS, reward=lambda solution_str: 0.5 * len(solution_str), steps=3, name="run-1",
        on_step=lambda step: steps.append(step.number), **SMALL,
    )  # fmt: skip
    assert steps == [3] and again.metrics["step"] == [1, 2, 3]


def test_ctrl_c_ends_a_run_with_what_was_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def interrupt(step):
        if step.number == 2:
            signal.raise_signal(signal.SIGINT)

    before = threads()
    with pytest.raises(KeyboardInterrupt) as caught:
        burnish.train(data=ROWS, reward=lambda solution_str: 1.0, steps=3, on_step=interrupt, **SMALL)
    assert len(caught.traceback) == 2  # this test, and the call
    assert threads() == before
    assert burnish.Run("outputs/burnish/run-1").model.name == "global_step_2"


def test_second_run_of_a_process_waits_for_the_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raised = []

    def on_step(step):
        with pytest.raises(ConfigError, match="another run of this process has not ended") as caught:
            burnish.sft(NANO, [{"prompt": "1+1=?", "response": "2"}])
        raised.append(caught)

    burnish.train(data=ROWS, reward=lambda solution_str: 1.0, steps=1, on_step=on_step, **SMALL)
    assert len(raised) == 1


@pytest.mark.parametrize(
    ("custom", "keys"),
    [
        ({}, {}),
        (
            {"path": "a.py", "name": "f", "reward_kwargs": {"x": 1}},
            {"path": "a.py", "name": "f", "reward_kwargs": {"x": 1}},
        ),
        ({"name": "f", "functions": {"a": {"path": "a.py"}}}, {"functions": {"a": {"path": "a.py"}}}),
        ({"path": "the running program", "name": "f"}, None),
    ],
)
def test_run_that_was_opened_evaluates_with_its_own_reward(tmp_path, monkeypatch, custom, keys):
    (tmp_path / "config.yaml").write_text(json.dumps({"data": {}, "custom_reward_function": custom}))
    run, given = burnish.Run(tmp_path), {}
    monkeypatch.setattr(burnish.Run, "model", NANO)
    monkeypatch.setattr("burnish.api.answer.evaluate", lambda **options: given.update(options))
    if keys is None:
        with pytest.raises(ConfigError, match="its reward, f, is of the program that started this run; give it as"):
            run.evaluate(ROWS)
    else:
        run.evaluate(ROWS)
        assert given["keys"] == {f"custom_reward_function.{name}": value for name, value in keys.items()}


def test_conversations_fine_tune(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": "1+1=?", "response": "2"}, {"messages": burnish_messages("2+2=?", "4")}]
    run = burnish.sft(
        NANO, rows, steps=2, max_length=32, on_step=lambda step: step.stop() if step.number == 1 else None
    )
    assert run.metrics["step"] == [1] and run.model.name == "global_step_1" and len(run.metrics["train/loss"]) == 1


def burnish_messages(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def ray_config():
    config = PPOConfig()
    config.trainer.executor = "ray"
    return config


def misspelt_config():
    config = PPOConfig()
    config.data.shufle = False
    return config


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"keys": {"actor_rollout_ref.rollout.temprature": 1}}, ConfigError, "did you mean .*temperature"),
        ({"keys": {"data": {"max_prompt_length": 8}}}, ConfigError, "prompt_length= and keys.*are the same thing"),
        ({"keys": {"custom_reward_function.path": "a.py"}}, ConfigError, "reward= and keys.* are the same thing"),
        ({"keys": 3}, ConfigError, "keys has the type int; give a dict of keys, or a PPOConfig"),
        ({"keys": ray_config()}, ConfigError, "with trainer.executor=ray others score; save it in a file"),
        ({"model": "no/such-model"}, BurnishError, "no/such-model"),
        ({"reward": "mbpp"}, ConfigError, "leave it out; this scorer is for rows whose data_source names it"),
        ({"reward": "gsm8"}, ConfigError, "no such scorer; did you mean gsm8k"),
        ({"reward": 3}, ConfigError, "reward has the type int; give a function"),
        ({"reward": []}, ConfigError, "reward is empty; give a function"),
        ({"reward": lambda answer: 1.0}, ConfigError, "it requires answer, which no row can fill"),
        ({"reward": [len, len]}, ConfigError, "two functions are called len"),
        ({"data": []}, DataError, "^data: there are no rows"),
        ({"data": {"train": ROWS}}, DataError, "choose one, such as data.'train'."),
        ({"data": [1]}, DataError, "row 0 .* has the type int; give a dict"),
        ({"data": "missing.parquet"}, DataError, "missing.parquet"),
        ({"data": "rows.csv"}, DataError, "data='rows.csv': a file of rows ends with one of .parquet,"),
        ({"data": ["a.json", *ROWS]}, DataError, r"data has rows and files \(a.json\); give either"),
        ({"data": [{"question": "1+1=?", "answer": "2"}]}, DataError, "^data: no column 'prompt' .* question, answer"),
        ({"val": [{"prompt": None}]}, DataError, "^val, row 0 .*: field 'prompt' is missing or null"),
        ({"data": None}, ConfigError, "data= is missing; give rows, or a file of rows"),
        ({"on_step": 3}, ConfigError, "on_step has the type int; give a function"),
        ({"model": None}, ConfigError, "model= is missing; give a Hugging Face folder"),
        ({"keys": misspelt_config()}, ConfigError, "unknown key 'data.shufle'; did you mean 'data.shuffle'"),
    ],
)
def test_errors_are_one_line_without_frames_of_burnish(tmp_path, monkeypatch, arguments, error, message):
    monkeypatch.chdir(tmp_path)
    given = {**SMALL, "data": ROWS, "reward": lambda solution_str: 1.0, "steps": 1, **arguments}
    with pytest.raises(error, match=message) as caught:
        burnish.train(**given)
    assert len(caught.traceback) == 2 and caught.value.__context__ is None
    assert not list(tmp_path.glob("outputs/burnish/*"))  # a run that did not begin leaves nothing
    (shown,) = caught.value._render_traceback_()  # what IPython shows in place of a traceback
    assert shown == f"burnish: error: {caught.value}"


@pytest.mark.slow
def test_script_that_is_its_own_reward_file_is_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import burnish\n"
        "open('starts', 'a').write('started\\n')\n"
        "def compute_score(solution_str):\n"
        "    return 1.0\n"
        f"burnish.train({NANO!r}, [{{'prompt': '1+1=?'}}], __file__, steps=1)\n"
    )
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr
    assert (tmp_path / "starts").read_text() == "started\n" * 2  # by the user, and once by a scoring process


class HuggingFace:
    """What is used of a `datasets.Dataset`."""

    column_names = ("prompt", "answer")

    def with_format(self, kind):
        assert kind is None
        return iter(ROWS)


@pytest.mark.parametrize("data", [ROWS, tuple(ROWS), pa.Table.from_pylist([ROWS[0]] * 2), HuggingFace()])
def test_any_table_becomes_a_file(tmp_path, data):
    from burnish.api.data import prompt_row, to_files
    from burnish.data.files import read_rows

    (file,) = to_files(data, tmp_path, "train", prompt_row)
    first, _ = read_rows(file)
    assert first == {
        "prompt": "565+344=?",
        "reward_model": {"style": "rule", "ground_truth": "909"},
        "extra_info": {"level": "sum"},
    }
    assert to_files(data, tmp_path, "train", prompt_row) == [file]  # written once
    assert to_files(Path("a.parquet"), tmp_path, "train", prompt_row) == ["a.parquet"]


def test_prompt_may_be_in_another_column(tmp_path):
    from burnish.api.data import prompt_row

    row = prompt_row({"question": "1+1=?", "answer": "2", "level": 1}, {"data.prompt_key": "question"})
    truth = {"style": "rule", "ground_truth": "2"}
    assert row == {"question": "1+1=?", "reward_model": truth, "extra_info": {"level": 1}}


@pytest.mark.parametrize("row", ["1+1=?", {"prompt": "1+1=?"}, {"text": "2"}])
def test_fine_tuning_names_the_columns_that_rows_need(tmp_path, monkeypatch, row):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        DataError, match="a row has (prompt|text); give each one messages, or a prompt and its response"
    ):
        burnish.sft(NANO, [row])


MANY = np.arange(2000)


@pytest.mark.parametrize(("value", "other"), [(b"2", b"3"), (MANY, np.where(MANY == 1000, 0, MANY))])
def test_values_that_json_cannot_hold_go_to_parquet(tmp_path, value, other):
    from burnish.api.data import prompt_row, to_files
    from burnish.data.files import read_rows

    first, second = (
        to_files([{"prompt": "1+1=?", "answer": one}], tmp_path, "train", prompt_row)[0] for one in (value, other)
    )
    assert first.endswith(".parquet") and first != second  # other rows are another file
    assert np.array_equal(read_rows(first)[0]["reward_model"]["ground_truth"], value)


def test_pandas_frames_are_rows(tmp_path):
    pandas = pytest.importorskip("pandas")
    from burnish.api.data import rows_of

    assert rows_of(pandas.DataFrame([ROWS[0]])) == [ROWS[0]]


@pytest.mark.slow
def test_first_program_of_the_readme_trains_as_it_is_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "README.md").read_text()
    names = {"__name__": "__main__"}
    exec(page.split("```python\n")[1].partition("```")[0], names)
    assert names["run"].step == 10 and names["run"].metrics["critic/score/mean"][-1] > 0.5
