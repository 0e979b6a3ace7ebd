"""Run folders as burnish writes them, with metrics and trajectories that are made up from their step and row."""

import json
from pathlib import Path

from burnish.tracking.disk import json_line

HOSTILE = (
    '<img src=x onerror="window.broken=1"><script>window.broken=1</script> \x1b[31mred\x1b[0m \u202egnp.exe \x00end'
)
CONFIG = """\
data:
  train_batch_size: 4
  max_prompt_length: 32
actor_rollout_ref:
  rollout: {{n: 4}}
  actor: {{optim: {{lr: {lr}}}}}
algorithm: {{adv_estimator: grpo}}
trainer: {{total_training_steps: 50}}
"""
RECIPE = (
    "actor_rollout_ref: {{actor: {{optim: {{lr: {lr}}}}}, rollout: {{n: 4}}}}\nalgorithm: {{adv_estimator: grpo}}\n"
)


def metrics_line(step: int) -> str:
    failed = {"failures/tool": 1.0} if step == 3 else {}
    return json_line(
        {
            "step": step, "critic/score/mean": 1 - 1 / step, "actor/entropy": 1 / step, "actor/grad_norm": 0.5,
            "timing_s/gen": 2.0, "timing_s/engine": 1.5, "timing_s/update_actor": 1.0, "timing_s/step": 3.5,
            "perf/max_memory_allocated_gb": 10 + step / 100, **failed,
        }
    )  # fmt: skip


def trajectory(step: int, row: int, group: int = 4, words: int = 6, response: str | None = None) -> dict:
    """Row `row` of a step; the prompts of a group are the same, and every fifth step has those of the first again."""
    prompt, sample = divmod(row, group)
    pieces = ["think", " <tool_call>", "3*", f"{row}", "</tool_call>", f" result {3 * row}"]
    pieces += [f" w{(step * 7 + row * 3 + i) % 97}" for i in range(words - len(pieces))]
    mask = [1, 1, 1, 1, 1, 0, *[1] * (words - 6)]
    if response is not None:
        pieces, mask = list(response), [1] * len(response)
    score = float((row + step) % group == 0)
    return {
        "uid": step * 1000 + prompt, "sample": sample, "data_source": "sums" if prompt % 2 == 0 else "code",
        "prompt": f"question {(step % 5) * 100 + prompt}", "response": "".join(pieces), "ground_truth": str(3 * row),
        "turns": 4, "finish_reason": "stop", "policy_version": step - 1, "score": score,
        "reward_info": {"acc": score, "format": 0.5}, "response_mask": mask,
        "token_lengths": [len(piece) for piece in pieces],
        "rollout_log_probs": [-0.25 * (i % 5) * m for i, m in enumerate(mask)],
        "advantages": [(score - 0.25) * m for m in mask],
        "log_prob_gap": [0.01 * (i % 3 - 1) * m for i, m in enumerate(mask)],
    }  # fmt: skip


def write_run(folder: Path, steps: int = 6, rows: int = 8, lr: float = 1e-6) -> Path:
    (folder / "rollouts").mkdir(parents=True)
    (folder / "status").mkdir()
    (folder / "config.yaml").write_text(CONFIG.format(lr=f"{lr:.1e}"))
    (folder / "recipe.yaml").write_text(RECIPE.format(lr=f"{lr:.1e}"))
    (folder / "metrics.jsonl").write_text("".join(metrics_line(step) for step in range(1, steps + 1)))
    for step in range(1, steps + 1):
        write_step(folder, step, rows)
    events = [
        {"time": 1.8e9, "kind": "checkpoint", "step": 2},
        {"time": 1.8e9, "kind": "finding", "step": 3, "rule": "cut_responses", "severity": "warning",
         "evidence": "most responses were cut", "remedy": "a higher limit", "samples": 0},
    ]  # fmt: skip
    (folder / "events.jsonl").write_text("".join(map(json_line, events)))
    wait = {"kind": "tool", "owner": "uid 3, sample 1", "subject": "tool search: execute", "age": 41.0, "limit": 60.0}
    status = {
        "name": "controller", "pid": 1, "host": "h", "time": 1.8e9, "started": 1.7e9, "state": "done", "step": steps,
        "steps": steps, "late": 0, "counts": {"tool": 1}, "waits": [wait],
    }  # fmt: skip
    (folder / "status" / "controller.json").write_text(json.dumps(status))
    return folder


def write_step(folder: Path, step: int, rows: int, **options: int) -> None:
    lines = (json_line(trajectory(step, row, **options)) for row in range(rows))
    (folder / "rollouts" / f"{step}.jsonl").write_text("".join(lines))


def write_trace(folder: Path, steps: int = 3) -> None:
    """Steps of 10 s: the controller generates for 6 and updates for 3, which a worker does in 2; an agent waits."""
    (folder / "trace").mkdir()
    spans: dict[str, list[dict]] = {"controller": [], "global_pool-0": [], "agents-0": []}
    for step in range(1, steps + 1):
        at, main = 1000.0 + 20 * step, {"thread": "MainThread"}
        spans["controller"] += [
            {"name": "gen", "start": at, "s": 6.0, **main},
            {"name": "update_actor", "start": at + 6.5, "s": 3.0, **main},
            {"name": "step", "start": at, "s": 10.0, **main, "step": step},
            {"name": "save_checkpoint", "start": at + 11, "s": 2.0, **main},
        ]
        spans["global_pool-0"] += [{"name": "W.update_actor", "start": at + 7, "s": 2.0, "thread": "compute"}]
        spans["agents-0"] += [
            {"name": f"tool {i}", "start": at + i, "s": 2.0, "wait": "tool", "owner": f"uid {i}"} for i in range(3)
        ]
    for name, lines in spans.items():
        (folder / f"trace/{name}.jsonl").write_text("".join(map(json_line, lines)))
