"""How long `burnish dashboard` takes to open a large run folder, and what it reads of it.

    python benchmarks/dashboard.py /tmp/large                  # 1,000 steps of 512 trajectories of 200 tokens: 3 GB
    python benchmarks/dashboard.py /tmp/large --steps 100      # a smaller one

Makes the folder if it is not there. Each request is sent twice, as to a dashboard that was just started and again;
`read` is what the process read from files for the first one.
"""

import argparse
import json
import random
import time
from pathlib import Path

from fastapi.testclient import TestClient

from burnish.dashboard.folders import Folders
from burnish.dashboard.server import make_app
from burnish.tracking.disk import json_line

RUN = "large/run"
METRICS = 100  # in a line of metrics.jsonl
GROUP = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    run = options.folder / RUN
    if not run.exists():
        make(run, options.steps, options.trajectories, options.tokens)
    size = sum(file.stat().st_size for file in run.rglob("*"))
    print(f"{len(list((run / 'rollouts').iterdir()))} steps, {size / 1e9:.2f} GB\n")
    client = TestClient(make_app(Folders([options.folder])), base_url="http://127.0.0.1")

    def ask(title: str, path: str, **parameters: object) -> dict:
        measured, before = [], bytes_read()
        for _ in range(2):
            begin = time.perf_counter()
            answer = client.get(path, params=parameters).raise_for_status()
            measured.append(time.perf_counter() - begin)
            before = before if len(measured) > 1 else bytes_read() - before
        read, size = f"{before / 1e6:10.2f} MB", f"{len(answer.content) / 1e3:9.1f} kB"
        print(f"{title:<34}{measured[0]:8.3f} s {measured[1]:8.3f} s {read} {size}")
        return answer.json() if "json" in answer.headers["content-type"] else {}

    print(f"{'':<34}{'first':>10} {'again':>10} {'read':>13} {'answer':>12}")
    begin = time.perf_counter()
    ask("the page", "/")
    ask("the list of runs", "/api/runs")
    found = ask("the run", "/api/run", run=RUN)
    ask("8 curves", "/api/metrics", run=RUN, name=found["metrics"][:8])
    last = found["samples"]["rollouts"][-1]
    ask("trajectories of the newest step", "/api/samples", run=RUN, first=last, last=last)
    ask("a group with its tokens", "/api/group", run=RUN, step=last, row=3)
    print(f"{'all of these, first and again':<34}{time.perf_counter() - begin:8.3f} s\n")
    for title, query in {
        "a text in all steps": {"text": "needle"},
        "a prompt in all steps": {"like": [last, 3]},
    }.items():
        begin, after, rows, requests = time.perf_counter(), None, 0, 0
        while requests == 0 or after:
            place = {"after": after} if after else {}
            page = client.get("/api/samples", params={"run": RUN, **query, **place}).json()
            after, rows, requests = page["next"], rows + len(page["rows"]), requests + 1
        print(f"{title:<34}{time.perf_counter() - begin:8.3f} s   {rows} found in {requests} requests")


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def make(run: Path, steps: int, trajectories: int, tokens: int) -> None:
    """The texts of a step are drawn once for ten steps; numbers differ in each."""
    (run / "rollouts").mkdir(parents=True)
    chance = random.Random(0)
    words = [" " + "".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 6))) for _ in range(5000)]
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            values = {f"group{i % 9}/metric{i}": chance.gauss(0, 1) for i in range(METRICS)}
            file.write(json_line({"step": step, "critic/score/mean": 1 - 1 / step, **values}))
    question = "".join(words[:45])
    for step in range(1, steps + 1):
        if step % 10 == 1:
            drawn = [chance.choices(words, k=tokens) for _ in range(trajectories)]
            by_token = [values_of_tokens(pieces, chance) for pieces in drawn]
        with (run / "rollouts" / f"{step}.jsonl").open("w") as file:
            for row, pieces in enumerate(drawn):
                prompt, sample = divmod(row, GROUP)
                score = float(chance.random() < 0.5)
                head = {
                    "uid": step * trajectories + prompt, "sample": sample, "data_source": f"source{prompt % 3}",
                    "prompt": f"Question {step % 10 * 1000 + prompt}:{question}", "response": "".join(pieces),
                    "ground_truth": "needle" if step % 100 == 7 and row == 5 else "42", "turns": 2,
                    "finish_reason": "stop", "policy_version": step - 1, "score": score,
                    "reward_info": {"acc": score, "format": 1.0},
                }  # fmt: skip
                file.write(f"{json.dumps(head)[:-1]}, {by_token[row]}\n")


def values_of_tokens(pieces: list[str], chance: random.Random) -> str:
    """The end of a row, which begins inside of its object."""
    values = {
        "response_mask": [1] * len(pieces),
        "token_lengths": [len(piece) for piece in pieces],
        "rollout_log_probs": [round(chance.gauss(-0.3, 0.3), 4) for _ in pieces],
        "advantages": [0.5] * len(pieces),
    }
    return json.dumps(values)[1:]


if __name__ == "__main__":
    main()
