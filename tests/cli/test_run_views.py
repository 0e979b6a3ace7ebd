"""`burnish runs`, `show`, `plot` and `compare`: over run folders that are written here."""

import json
import os

import pytest

from burnish.cli.main import main
from burnish.config.trainer import TrainerConfig
from burnish.tracking.compare import p_value, read_groups
from burnish.tracking.run_folder import RunFolder
from burnish.tracking.tracker import Tracker

CALL, FOUND, ANSWER = "<search>capital</search>", "\n<information>Lima\x1b[2J</information>", "Lima"


def sample(uid=3, score=1.0, **more):
    return {
        "uid": uid, "sample": 0, "data_source": "nq", "prompt": f"Question {uid}: capital of Peru?",
        "response": CALL + FOUND + ANSWER, "ground_truth": "Lima", "turns": 4, "finish_reason": "stop", "score": score,
        "reward_info": {"acc": score, "format": 0.5}, "response_mask": [1, 1, 0, 1],
        "token_lengths": [8, len(CALL) - 8, len(FOUND), len(ANSWER)], "advantages": [0.7, 0.7, 0.0, -0.2], **more,
    }  # fmt: skip


def write_run(folder, rewards=(), samples=(), seed=1, lr=1e-6):
    """A run of one step per reward."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i + 1, "critic/score/mean": value}) + "\n" for i, value in enumerate(rewards))
    )
    keys = {"trainer": {"seed": seed, "default_local_dir": str(folder)}, "actor": {"optim": {"lr": lr}}}
    (folder / "config.yaml").write_text(json.dumps(keys))
    for step, rows in samples:
        (folder / "rollouts").mkdir(exist_ok=True)
        (folder / f"rollouts/{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_runs_lists_the_newest_first_with_state_and_last_values(tmp_path, capsys):
    old = write_run(tmp_path / "old", [0.25, 0.5])
    os.utime(old / "metrics.jsonl", (1e9, 1e9))
    trainer = TrainerConfig(default_local_dir=str(tmp_path / "new"), logger=["jsonl"])
    with RunFolder(tmp_path / "new") as folder, Tracker(trainer, folder, total_steps=3) as tracker:
        tracker.log({"critic/score/mean": 0.125, "response_length/mean": 7.0}, 3)
    assert main(["runs", str(tmp_path)]) == 0
    heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split("  ")[0] == "run" and "last values" in heads
    assert "done" in next(row for row in rows if "/new " in row)
    assert "reward 0.125, length 7.0" in next(row for row in rows if "/new " in row)
    assert "reward 0.500" in next(row for row in rows if "/old " in row)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert [one["step"] for one in json.loads(capsys.readouterr().out)] == [3, 2]
    assert main(["runs", str(tmp_path / "old/rollouts")]) == 2
    assert "there is no run in this folder" in capsys.readouterr().err


def test_plot_is_written_at_the_end_of_a_run(tmp_path):
    trainer = TrainerConfig(default_local_dir=str(tmp_path / "run"), logger=["jsonl"])
    with RunFolder(tmp_path / "run") as folder, Tracker(trainer, folder) as tracker:
        tracker.log({"critic/score/mean": 0.5, "val-core/$x/acc": 0.25}, 1)
    assert (tmp_path / "run/plot.png").read_bytes().startswith(b"\x89PNG")


def test_show_cuts_the_response_at_the_mask_and_the_terminal_obeys_nothing(tmp_path, capsys):
    run = write_run(tmp_path / "run", [1.0], [(1, [sample()])])
    assert main(["show", str(run)]) == 0
    text = capsys.readouterr().out
    assert (
        "step 1 · uid 3, sample 0 · nq · score 1 · advantage -0.2 to 0.7 · 4 tokens, 1 masked · 4 turns · stop" in text
    )
    assert f"policy, turn 1 (2 tokens, advantage 0.7):\n    {CALL}\n" in text
    assert "not trained on (1 token):\n\n    <information>Lima\\x1b[2J</information>\n" in text
    assert "policy, turn 2 (1 token, advantage -0.2):\n    Lima\n" in text
    assert "ground truth: Lima" in text and "reward parts: acc 1, format 0.5" in text
    assert "\x1b" not in text


def test_samples_without_the_lengths_of_tokens_are_shown_whole(tmp_path, capsys):
    run = write_run(tmp_path / "run", [1.0], [(1, [sample(token_lengths=[1])])])
    assert main(["show", str(run)]) == 0
    assert "  response:\n    <search>" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ([], [(5, 1), (5, 2), (5, 3)]),
        (["--step", "2", "--count", "1"], [(2, 7)]),
        (["--worst", "--count", "2"], [(5, 3), (5, 2)]),
        (["--best", "--count", "1"], [(5, 1)]),
        (["--prompt", "question 7"], [(5, 7), (2, 7)]),
        (["--prompt", "question 7", "--best", "--count", "1"], [(2, 7)]),
    ],
)
def test_samples_are_chosen_by_step_score_and_prompt(tmp_path, capsys, flags, shown):
    newest = [sample(1, 0.9), sample(2, 0.2), sample(3, 0.1), sample(7, "nan")]
    run = write_run(tmp_path / "run", [1.0], [(2, [sample(7, 0.4)]), (5, newest)])
    assert main(["show", str(run), "--json", *flags]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["step"], row["uid"]) for row in rows] == shown


def test_plot_of_several_runs_and_of_a_named_metric(tmp_path, capsys):
    runs = [str(write_run(tmp_path / name, [0.1 * i for i in range(9)])) for name in "ab"]
    assert main(["plot", *runs, "--out", str(tmp_path / "both.png")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "both.png")
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", runs[0]]) == 0 and (tmp_path / "a/plot.png").is_file()
    assert main(["plot", runs[0], "--metric", "x"]) == 2
    assert "no metric x to plot. It holds: critic/score/mean" in capsys.readouterr().err


def test_compare_groups_runs_by_seed_and_says_what_is_significant(tmp_path, capsys):
    for name, lr, finals in (("slow", 1e-6, (0.50, 0.52, 0.51)), ("fast", 1e-5, (0.70, 0.72, 0.74))):
        for seed, final in enumerate(finals):
            write_run(tmp_path / name / f"seed-{seed}", [0.0] * 19 + [final - 0.01, final + 0.01], seed=seed, lr=lr)
    assert main(["compare", str(tmp_path / "slow"), str(tmp_path / "fast"), "--out", str(tmp_path / "c.png")]) == 0
    text = capsys.readouterr().out
    assert f"A  {tmp_path}/slow/seed-0 and 2 more with other seeds" in text
    assert "actor.optim.lr  1e-06  1e-05" in text and "trainer" not in text
    (line,) = [line for line in text.splitlines() if "critic/score/mean" in line]
    assert "0.51 ± 0.01" in line and "0.72 ± 0.02" in line and "significant" in line
    assert (tmp_path / "c.png").is_file()
    one = str(tmp_path / "slow/seed-0")
    assert main(["compare", one]) == 2
    assert main(["compare", one, str(tmp_path / "fast/seed-0")]) == 0
    text = capsys.readouterr().out
    assert "repeat it with other values of trainer.seed" in text and "A-B" not in text
    assert len(read_groups([str(tmp_path)])) == 2


def test_p_value_equals_known_ones():
    assert p_value([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(0.3466, abs=1e-4)
    assert p_value([0.0, 1.0], [0.0, 1.0]) == pytest.approx(1.0) and p_value([1.0], [2.0, 3.0]) is None


def test_event_files_are_written_afterwards_and_never_twice(tmp_path, capsys):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_run(tmp_path / "run", [0.25, 0.5], [(2, [sample()])])
    assert main(["tensorboard", str(run)]) == 0
    assert f"tensorboard --logdir {run}" in capsys.readouterr().out
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("critic/score/mean")] == [(1, 0.25), (2, 0.5)]
    assert [one.step for one in events.Tensors("samples/0/text_summary")] == [2]
    assert main(["tensorboard", str(run)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["tensorboard", str(run), "--out", str(tmp_path / "elsewhere")]) == 0
