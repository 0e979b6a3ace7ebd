"""`burnish.generate`, `burnish.evaluate` and `burnish.serve`."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import burnish
from burnish.errors import ConfigError, DataError

NANO = "burnish/models/nano"
LENGTHS = {"prompt_length": 16, "response_length": 8}
ROWS = [{"prompt": "1+1=?", "answer": "2"}, {"prompt": "200+300=?", "ground_truth": "500"}]


@pytest.mark.slow
def test_calls_of_the_docs_run_one_after_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text().partition("## The other commands")[2]
    names = {"burnish": burnish, "my_function": lambda solution_str, ground_truth: 1.0}
    exec(page.split("```python\n")[1].partition("```")[0], names)
    assert names["run"].step == 3
    assert [len(row["responses"]) for row in names["rows"]] == [4, 4]
    assert names["scores"].mean == 1.0 and names["scores"].rows[0]["scores"] == [1.0]
    assert names["server"].url in capsys.readouterr().out
    assert "burnish-serve" not in {thread.name for thread in threading.enumerate()}


def test_output_keeps_the_responses_for_the_next_call(tmp_path, capsys):
    first, again = (burnish.generate(NANO, ROWS, output=tmp_path / "out.parquet", **LENGTHS) for _ in range(2))
    assert first == again and "out.parquet is complete" in capsys.readouterr().err


def test_responses_in_rows_are_scored_without_a_model():
    async def exact(solution_str, ground_truth):
        return {"score": solution_str == ground_truth, "length": len(solution_str)}

    rows = [{**row, "responses": ["2", "500"]} for row in ROWS]
    scores = burnish.evaluate(data=rows, reward={"exact": exact, "short": (lambda solution_str: 1.0, 0.0)})
    assert scores.mean == 0.5 and [row["scores"] for row in scores.rows] == [[1.0, 0.0], [0.0, 1.0]]
    assert scores.rows[0]["reward_info"][0] == {"exact": 1.0, "short": 1.0, "length": 1}
    assert "mean 0.5000 of 2 rows" in repr(scores)


def test_served_model_answers_until_it_is_closed():
    with burnish.serve(NANO, name="sums", max_num_seqs=2) as server:
        body = {"model": "sums", "messages": [{"role": "user", "content": "1+1=?"}], "max_tokens": 4}
        request = Request(
            f"{server.url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"]
        with pytest.raises(ConfigError, match="port"):
            burnish.serve(NANO, port=int(server.url.split(":")[2].split("/")[0]))
    with pytest.raises(OSError):
        urlopen(f"{server.url}/models")


@pytest.mark.slow
def test_server_that_is_left_open_ends_with_its_program(tmp_path):
    program = f"import burnish\nserver = burnish.serve({NANO!r})\nprint(server.name)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: burnish.evaluate(data=ROWS, n=2), ConfigError, "without model= nothing is generated"),
        (
            lambda: burnish.evaluate(data=ROWS, reward=lambda solution_str: 1.0),
            DataError,
            "^data: no column 'responses'",
        ),
        (lambda: burnish.generate(NANO, "1+1=?"), DataError, "data='1\\+1=\\?': .* give prompts in a list"),
        (lambda: burnish.generate(NANO), ConfigError, "data= is missing"),
        (lambda: burnish.generate(NANO, ["a.json", "b.json"]), ConfigError, "2 files, and one is read at a time"),
        (lambda: burnish.Run("nowhere"), ConfigError, "nowhere: no such run folder"),
        (lambda: burnish.Run(Path(__file__).parent).plot(), DataError, "no metrics to plot: no step is logged yet"),
        (lambda: burnish.nothing, AttributeError, "no attribute 'nothing'; it has train"),
    ],
)
def test_errors_name_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
