"""Around the loop, as one chain of commands: rows made, checked, answered and scored, with the figures of training."""

import json
from pathlib import Path

from burnish.cli.main import main
from burnish.models.folder import resolve_path
from burnish.tracking.jsonl import read_metrics

NANO = Path(__file__).parents[1] / "burnish/models/nano"


def run(line: str) -> None:
    assert main(line.split()) == 0


def test_the_chain(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("data make arithmetic --train-size 32 --test-size 24 --out data")
    run(f"data check data/train.parquet data/test.parquet --tokenizer {NANO}")
    said = capsys.readouterr().out
    assert "2 files, 56 rows: no problems" in said and "24 scored, all pass" in said

    sampled = " ".join(
        f"actor_rollout_ref.rollout.val_kwargs.{key}" for key in ("do_sample=true", "temperature=1.0", "n=4")
    )
    run(
        "ppo algorithm.adv_estimator=grpo data.train_files=data/train.parquet data.val_files=data/test.parquet "
        f"{sampled} data.max_prompt_length=32 data.max_response_length=64 data.train_batch_size=8 trainer.seed=3 "
        f"actor_rollout_ref.model.path={NANO} trainer.total_training_steps=1 trainer.device=cpu "
        "trainer.default_local_dir=run trainer.logger=jsonl"
    )
    generate = (
        "generate data.path=data/test.parquet data.n_samples=4 rollout.prompt_length=32 rollout.response_length=64"
    )
    generate += " trainer.seed=3 trainer.device=cpu"
    run(f"{generate} data.output_path=out.parquet model.path=run")
    run("eval data.path=out.parquet")
    trained = [line for line in read_metrics("run") if line["step"] == 1][-1]
    core = {name: value for name, value in trained.items() if name.startswith("val-core/")}
    assert len(core) == 3, "mean, best and majority"
    assert json.loads(Path("out.eval.json").read_text())["metrics"] == core

    run("export run --out exported --device cpu")
    run(f"{generate} data.output_path=again.parquet model.path=exported")
    run("eval data.path=again.parquet")
    assert json.loads(Path("again.eval.json").read_text())["metrics"] == core, "the exported model is the trained one"
    assert not list(resolve_path("exported").glob("optimizer*"))
