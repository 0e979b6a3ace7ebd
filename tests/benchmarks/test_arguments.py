import sys

import pytest

from tests.benchmarks.conftest import BENCHMARKS, load


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCHMARKS.glob("*.py")))
def test_every_benchmark_loads(name):
    assert callable(load(name).main)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("agents", ["--calls", "0"], "--calls must be at least 1"),
        ("controller", ["--batches", "64"], "a batch is rows x tokens"),
        ("controller", ["--batches", "10x64"], "rows must be a multiple of 8"),
        ("controller", ["--workers", "0"], "all sizes must be at least 1"),
        ("run_ahead", ["--steps", "6"], "--steps must be more than 6"),
        ("sharded", ["--updates", "2"], "--updates must be more than 2"),
        ("step", ["--steps", "1"], "--steps 2: the first step is not counted"),
        ("step", ["--shape", "huge"], "invalid choice: 'huge'"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_made(name, arguments, message, monkeypatch, capsys):
    if name == "controller":
        pytest.importorskip("ray")
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    with pytest.raises(SystemExit) as end:
        load(name).main()
    assert end.value.code == 2 and message in capsys.readouterr().err
