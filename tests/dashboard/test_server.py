"""The routes of the dashboard over run folders: what they answer, what they read, and what they refuse."""

import json
import os
import re

import pytest
from fastapi.testclient import TestClient

from burnish.cli.main import main
from burnish.dashboard import samples
from burnish.dashboard.folders import Folders
from burnish.dashboard.server import make_app
from burnish.tracking.disk import json_line
from tests.dashboard.made import HOSTILE, metrics_line, trajectory, write_run, write_step, write_trace

FIRST, SECOND = "proj/first", "proj/second"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028]")


def all_rows(get, **query):
    """All pages of a search."""
    rows, after = [], None
    while True:
        page = get("samples", **query, **({"after": after} if after else {}))
        rows += page["rows"]
        after = page["next"]
        if after is None:
            return rows


def test_runs_have_state_step_findings_and_a_small_curve(get):
    found = get("runs")
    assert found["total"] == 2 and {run["run"] for run in found["runs"]} == {FIRST, SECOND}
    (first,) = [run for run in found["runs"] if run["run"] == FIRST]
    assert (first["state"], first["step"], first["steps"]) == ("done", 6, 6)
    assert [one["rule"] for one in first["findings"]] == ["cut_responses"]
    assert first["spark"] == {"name": "critic/score/mean", "values": [1 - 1 / step for step in range(1, 7)]}


def test_one_run_has_waits_events_metrics_and_the_steps_of_its_samples(get):
    run = get("run", run=FIRST)
    assert run["samples"] == {"rollouts": [1, 2, 3, 4, 5, 6], "validation": []}
    (process,) = run["status"]["processes"]
    assert process["waits"][0]["subject"] == "tool search: execute"
    assert [event["kind"] for event in run["events"]] == ["checkpoint", "finding"]
    assert {"critic/score/mean", "timing_s/gen", "failures/tool"} <= set(run["metrics"])
    assert get("health", run=FIRST)["verdict"].startswith("6 steps are too few")


def test_metrics_grow_and_those_of_a_replaced_file_are_read_again(get, outputs):
    path = outputs / FIRST / "metrics.jsonl"

    def series(**options):
        return get("metrics", run=FIRST, name=["actor/entropy", "unknown"], **options)

    before = series()
    assert before["series"]["actor/entropy"]["steps"] == [1, 2, 3, 4, 5, 6]
    assert before["series"]["unknown"] == {"steps": [], "values": []}
    with path.open("a") as file:
        file.write(json_line({"step": 7, "actor/entropy": float("nan")}) + '{"step": 8, "actor/ent')
    assert series(after=5)["series"]["actor/entropy"] == {"steps": [6, 7], "values": [1 / 6, None]}
    with path.open("a") as file:
        file.write('ropy": 0.5}\nno json\n[1]\n{"step": "x"}\n')
    assert series(after=7)["series"]["actor/entropy"] == {"steps": [8], "values": [0.5]}
    other = path.with_name("other")
    other.write_text(metrics_line(1))
    other.replace(path)  # as a run that resumes does
    after = series()
    assert after["file"] != before["file"] and after["series"]["actor/entropy"]["steps"] == [1]


def test_a_long_curve_is_thinned_and_keeps_its_last_point(get, outputs):
    lines = "".join(json_line({"step": step, "x": float(step)}) for step in range(1, 10_001))
    (outputs / FIRST / "metrics.jsonl").write_text(lines)
    steps = get("metrics", run=FIRST, name="x")["series"]["x"]["steps"]
    assert 2000 < len(steps) <= 4000 and steps[-1] == 10_000


QUERIES = {
    "the newest step first": ({}, [(step, row) for step in range(6, 0, -1) for row in range(8)]),
    "steps": ({"first": 2, "last": 3}, [(step, row) for step in (3, 2) for row in range(8)]),
    "source": ({"first": 6, "source": "code"}, [(6, row) for row in range(4, 8)]),
    "scores": ({"first": 6, "low": 1}, [(6, 2), (6, 6)]),
    "best first": ({"first": 6, "order": "best", "source": "sums"}, [(6, 2), (6, 0), (6, 1), (6, 3)]),
    "worst first": ({"first": 6, "order": "worst", "source": "sums"}, [(6, 0), (6, 1), (6, 3), (6, 2)]),
    "text of a response": ({"text": "3*5</TOOL"}, [(step, 5) for step in range(6, 0, -1)]),
    "text of a prompt": ({"text": "question 101"}, [(step, row) for step in (6, 1) for row in range(4, 8)]),
    "a text only in other fields": ({"text": "response_mask"}, []),
    "the same prompt": ({"like": [1, 2]}, [(step, row) for step in (6, 1) for row in range(4)]),
    "nothing": ({"source": "none"}, []),
}


@pytest.mark.parametrize("budget", [samples.BUDGET, 0], ids=["at once", "in small parts"])
@pytest.mark.parametrize(("query", "expected"), QUERIES.values(), ids=QUERIES)
def test_trajectories_are_found_by(get, monkeypatch, budget, query, expected):
    monkeypatch.setattr(samples, "BUDGET", budget)
    monkeypatch.setattr(samples, "PAGE", 5)
    assert [(row["step"], row["row"]) for row in all_rows(get, run=FIRST, **query)] == expected


def test_a_line_of_the_list_has_score_advantage_and_the_end_of_the_texts(get, outputs):
    write_step(outputs / FIRST, 6, rows=1, words=300)
    (row,) = get("samples", run=FIRST, first=6)["rows"]
    assert (row["score"], row["advantage"], row["tokens"], row["finish_reason"]) == (0.0, -0.25, 300, "stop")
    assert row["response"].startswith("…") and row["response"].endswith(trajectory(6, 0, words=300)["response"][-200:])


def test_a_group_has_its_trajectories_with_tokens_and_their_values(get):
    rows = get("group", run=FIRST, step=3, row=5)["rows"]
    assert [row["row"] for row in rows] == [4, 5, 6, 7]
    made = trajectory(3, 5)
    assert rows[1]["tokens"] == ["think", " <tool_call>", "3*", "5", "</tool_call>", " result 15"]
    for name in ("advantages", "rollout_log_probs", "log_prob_gap", "response_mask", "reward_info", "ground_truth"):
        assert rows[1][name] == made[name]


@pytest.mark.parametrize("lengths", [None, [1, 2], [5, -1, 5], "abc", [0.5], [True]])
def test_tokens_are_left_out_where_their_ends_are_not_known(get, outputs, lengths):
    row = {**trajectory(1, 0), "token_lengths": lengths}
    (outputs / FIRST / "rollouts" / "1.jsonl").write_text(json_line(row))
    (found,) = get("group", run=FIRST, step=1, row=0)["rows"]
    assert found["tokens"] is None and found["response"] == row["response"]


def test_rows_of_other_shapes_are_shown_as_far_as_they_go(get, outputs):
    odd = [
        {}, {"uid": [1], "score": "nan"}, {"score": None, "prompt": 3, "response": {"a": 1}},
        {"reward_info": {"a": 1, "response_mask": [1]}, "response": "nested", "response_mask": [1]},
        {"response": 'a text with "response_mask": [ inside', "response_mask": [1]},
    ]  # fmt: skip
    lines = [json.dumps(row) for row in odd]
    (outputs / FIRST / "rollouts" / "6.jsonl").write_text("\n".join(["no json", *lines, "[" * 5000, '{"torn": ']))
    found = get("samples", run=FIRST, first=6)["rows"]
    assert [row["response"] for row in found][-2:] == ["nested", odd[-1]["response"]]
    assert get("samples", run=FIRST, first=6, text="inside")["rows"][0]["row"] == found[-1]["row"]
    assert get("group", run=FIRST, step=6, row=found[-1]["row"])["rows"]


@pytest.mark.parametrize("depth", [100, 600, 900, 5000])
def test_deep_and_not_finite_values_end_no_request(get, outputs, depth):
    odd = {"prompt": "p", "score": 1.0, "reward_info": {"x": "DEEP"}, "advantages": [float("nan"), 1]}
    text = json.dumps(odd).replace('"DEEP"', "[" * depth + "]" * depth)
    (outputs / FIRST / "rollouts" / "6.jsonl").write_text(text + "\n" + json_line(trajectory(6, 1)))
    rows = get("samples", run=FIRST, first=6)["rows"]
    assert rows[-1]["prompt"] == trajectory(6, 1)["prompt"]
    if depth == 100:
        assert get("group", run=FIRST, step=6, row=0)["rows"][0]["advantages"] == ["nan", 1]
    get("group", (200, 404), run=FIRST, step=6, row=0)


def test_opening_reads_neither_samples_nor_whole_metrics(get, outputs, monkeypatch):
    """The list, a run, and the newest step of a run with many steps: only that step's file is opened."""
    from burnish.dashboard import folders

    for step in range(7, 200):
        write_step(outputs / FIRST, step, rows=1)
    seen = []
    monkeypatch.setattr(samples, "opened", lambda path: seen.append(path.name) or folders.opened(path))
    get("runs")
    last = get("run", run=FIRST)["samples"]["rollouts"][-1]
    assert last == 199 and not seen
    assert len(get("samples", run=FIRST, first=last, last=last)["rows"]) == 1 and set(seen) == {"199.jsonl"}


def test_configurations_show_what_differs_from_defaults_and_between_runs(get):
    keys = {row["key"]: row for row in get("config", run=[FIRST, SECOND])["keys"]}
    lr = keys["actor_rollout_ref.actor.optim.lr"]
    assert lr["values"] == ["1e-06", "0.01"] and lr["set"] == [True, True] and lr["meaning"]
    assert keys["algorithm.adv_estimator"]["default"] == "'gae'"
    assert keys["data.train_batch_size"]["set"] == [False, False], "it follows from other keys"
    assert "algorithm.gamma" not in keys
    assert "algorithm.gamma" in {row["key"] for row in get("config", run=FIRST, every=True)["keys"]}


def test_a_configuration_that_grows_when_it_is_read_is_shown_in_part(get, outputs):
    bomb = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]\n" for i in range(30))
    (outputs / FIRST / "config.yaml").write_text(f"{bomb}data: {{train_files: *a29}}\n")
    assert len(json.dumps(get("config", run=FIRST))) < 1_000_000
    (outputs / FIRST / "config.yaml").write_text("!!python/object/apply:os.system ['true']")
    assert "cannot be read" in get("config", 404, run=FIRST)["detail"]


def test_hostile_texts_leave_with_their_control_characters_as_codes(outputs):
    run = outputs / "proj" / "x\x1b[31m<b>"
    write_run(run, steps=1, rows=0)
    row = trajectory(1, 0, response=HOSTILE) | dict.fromkeys(("prompt", "uid", "data_source", "finish_reason"), HOSTILE)
    (run / "rollouts" / "1.jsonl").write_text(json_line({**row, "reward_info": {HOSTILE: HOSTILE}}))
    (run / "metrics.jsonl").write_text(json_line({"step": 1, HOSTILE: 1.0}))
    (run / "events.jsonl").write_text(json_line({"kind": HOSTILE, HOSTILE: [HOSTILE]}))
    client = TestClient(make_app(Folders([outputs])), base_url="http://localhost:8000")
    (name,) = [one["run"] for one in client.get("/api/runs").json()["runs"] if "<b>" in one["run"]]
    row_of = {"step": 1, "row": 0}
    for path, more in {"run": {}, "samples": {}, "group": row_of, "sources": row_of, "config": {}}.items():
        answer = client.get(f"/api/{path}", params={"run": name, **more})
        assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
        assert not CONTROL.search(strings(answer.json())), path
    tokens = client.get("/api/group", params={"run": name, "step": 1, "row": 0}).json()["rows"][0]["tokens"]
    assert "\\x1b" in tokens and "\\u202e" in tokens and "".join(tokens).startswith("<img src=x")


def strings(value):
    """All texts of an answer, one after the other."""
    if isinstance(value, dict):
        return "".join(map(strings, [*value.keys(), *value.values()]))
    return "".join(map(strings, value)) if isinstance(value, list) else value if isinstance(value, str) else ""


@pytest.mark.parametrize(
    "name", ["..", "../..", "/etc", "proj/../proj/first", "proj", "", "proj/first/..", "outside", "proj/linked"]
)
def test_runs_are_known_by_name_only(get, outputs, tmp_path, name):
    write_run(tmp_path / "outside")
    (outputs / "proj" / "linked").symlink_to(tmp_path / "outside")
    for path, more in {"run": {}, "metrics": {"name": "x"}, "samples": {}, "config": {}, "health": {}}.items():
        assert "there is no run" in get(path, 404, run=name, **more)["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/../pyproject.toml",
        "/page/../server.py",
        "/page/%2e%2e%2fserver.py",
        "/page/server.py",
        "/docs",
        "/openapi.json",
        "/page/",
    ],
)
def test_nothing_but_the_page_is_served(outputs, path):
    client = TestClient(make_app(Folders([outputs])), base_url="http://127.0.0.1")
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("made", ["link", "pipe"])
@pytest.mark.parametrize(
    ("name", "path", "more"),
    [
        ("metrics.jsonl", "metrics", {"name": "step"}),
        ("metrics.jsonl", "health", {}),
        ("events.jsonl", "run", {}),
        ("status/controller.json", "run", {}),
        ("config.yaml", "config", {}),
        ("rollouts/6.jsonl", "group", {"step": 6, "row": 0}),
        ("rollouts/6.jsonl", "health", {}),
        ("stacks/1.txt", "stacks", {"name": "1.txt"}),
        ("trace/controller.jsonl", "trace", {"step": 1}),
        ("trace/agents-0.jsonl", "trace.json", {}),
        ("profiles/step_2/a.json.gz", "profile", {"name": "step_2/a.json.gz"}),
    ],
)  # fmt: skip
def test_links_out_of_a_run_and_pipes_are_not_opened(get, outputs, tmp_path, made, name, path, more):
    secret = tmp_path / "secret"
    secret.write_text('{"step": 1, "secret": 1, "prompt": "secret", "kind": "secret"}\n')
    file = outputs / FIRST / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.symlink_to(secret) if made == "link" else os.mkfifo(file)
    assert "secret" not in json.dumps(get(path, 404, run=FIRST, **more))
    assert {run["run"] for run in get("runs")["runs"]} == {FIRST, SECOND}, "the list goes on without it"


def test_linked_folders_of_traces_and_profiles_are_not_entered(get, outputs, tmp_path):
    write_trace(tmp_path)
    (tmp_path / "profiles/step_1").mkdir(parents=True)
    (tmp_path / "profiles/step_1/a.json.gz").write_text("")
    assert get("trace", run=FIRST, step=1)["processes"] == []
    for name in ("trace", "profiles"):
        (outputs / FIRST / name).symlink_to(tmp_path / name)
    get("trace", 404, run=FIRST, step=1)
    assert get("run", run=FIRST)["profiles"] == []
    for name in ("step_1/a.json.gz", "../config.yaml", "/etc/passwd"):
        get("profile", 404, run=FIRST, name=name)


def test_a_linked_folder_of_samples_is_not_entered(get, outputs, tmp_path):
    folder = outputs / FIRST / "rollouts"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert get("run", run=FIRST)["samples"]["rollouts"] == []
    assert get("samples", run=FIRST)["rows"] == []
    get("group", 404, run=FIRST, step=6, row=0)
    for kind in ("../rollouts", "..", "status"):
        get("samples", 404, run=FIRST, kind=kind)
    get("stacks", 404, run=FIRST, name="../config.yaml")


def test_samples_elsewhere_are_read_where_that_folder_is_named_too(outputs, tmp_path):
    elsewhere = tmp_path / "elsewhere" / "samples"
    elsewhere.parent.mkdir()
    (outputs / FIRST / "rollouts").rename(elsewhere)
    (outputs / FIRST / "recipe.yaml").write_text(f"trainer:\n  rollout_data_dir: {elsewhere}\n")
    for roots, name, steps in ([outputs], FIRST, 0), ([outputs, tmp_path / "elsewhere"], str(outputs / FIRST), 6):
        client = TestClient(make_app(Folders(roots)), base_url="http://127.0.0.1")
        found = client.get("/api/run", params={"run": name}).json()
        assert len(found["samples"]["rollouts"]) == steps


def test_a_key_is_asked_of_all_data_and_not_of_the_page(outputs):
    client = TestClient(make_app(Folders([outputs]), key="sesame"), base_url="http://anything.example")
    assert client.get("/").status_code == client.get("/page/app.js").status_code == 200
    for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "sesame"}):
        assert client.get("/api/runs", headers=given).status_code == 401
    assert client.get("/api/runs", headers={"Authorization": "Bearer sesame"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1", 200), ("localhost:8000", 200), ("[::1]:8000", 200), ("[::1]", 200), ("127.0.0.2", 200),
     ("evil.example", 403),
     ("127.0.0.1.evil.example:8000", 403), ("evil.example:127", 403)],
)  # fmt: skip
def test_without_a_key_requests_must_name_this_machine(outputs, host, status):
    """A web page elsewhere can bind its own name to 127.0.0.1."""
    client = TestClient(make_app(Folders([outputs])), base_url="http://127.0.0.1")
    assert client.get("/api/runs", headers={"Host": host}).status_code == status


def test_the_page_may_load_nothing_from_elsewhere_and_no_inline_script(outputs):
    answer = TestClient(make_app(Folders([outputs])), base_url="http://127.0.0.1").get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"https?://|<script>|\son\w+=", answer.text)


@pytest.mark.parametrize(
    ("path", "more", "reason"),
    [
        ("samples", {"first": "x"}, "first: Input should be a valid integer"),
        ("samples", {"kind": "others"}, "there are rollouts and validation, not 'others'"),
        ("group", {"step": 1, "row": 99}, "rollouts of step 1 have 8 rows; there is no row 99"),
        ("group", {"step": 99, "row": 0}, "the run has no file 99.jsonl"),
        ("metrics", {}, "name: Field required"),
    ],
)
def test_wrong_requests_name_what_is_wrong(get, path, more, reason):
    assert get(path, 422 if "Input" in reason or "Field" in reason else 404, run=FIRST, **more)["detail"].startswith(
        reason
    )


def test_folders_that_are_not_there_are_refused(tmp_path, capsys):
    assert main(["dashboard", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "flags", "has_key"), [("127.0.0.1", {}, False), ("0.0.0.0", {}, True), ("0.0.0.0", {"key": "k"}, True)]
)
def test_other_machines_need_a_key(outputs, monkeypatch, capsys, host, flags, has_key):
    from burnish.dashboard import server

    class Stopped:
        exit_code = 0

        def __init__(self, app, ready, **options):
            self.app, self.run = app, lambda sockets: ready()

    seen = []
    monkeypatch.setattr(
        server, "HttpServer", lambda *given, **options: seen.append(Stopped(*given, **options)) or seen[-1]
    )
    assert server.serve([str(outputs)], host, 0, **flags) == 0
    printed = capsys.readouterr().out
    key = printed.strip().partition("#key=")[2]
    assert bool(key) == has_key and (not flags or key == "k")
    client = TestClient(seen[0].app, base_url="http://127.0.0.1")
    assert client.get("/api/runs").status_code == (401 if has_key else 200)
    assert not has_key or client.get("/api/runs", headers={"Authorization": f"Bearer {key}"}).status_code == 200
