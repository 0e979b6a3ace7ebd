"""`burnish quickstart`: its tasks run and learn, the command it prints can be pasted, and the retrieval server lives as
long as it is needed."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from burnish.cli import quickstart, quickstart_agents
from burnish.cli.main import main
from burnish.cli.quickstart import as_typed, find_lesson, learn, parser
from burnish.cli.quickstart_agents import CALCULATOR, SEARCH, end, serving, wait_for
from burnish.data.tasks import facts
from burnish.errors import BurnishError
from tests.processes import is_running


def test_help_shows_the_defaults(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["quickstart", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "training steps [60]" in text and "run folder [outputs/quickstart;" in text


SERVER = re.compile(r"retrieval server: process (\d+) at (http://\S+/retrieve)")


@pytest.mark.parametrize(
    ("task", "steps", "share", "question"),
    [
        ("arithmetic", 1, "", ""),
        ("search", 2, "answers with a valid search", "Who is the"),
        ("calculator", 2, "answers with a valid call", "What is "),
    ],
)
def test_a_run_leaves_what_it_says_and_no_server(tmp_path, monkeypatch, capsys, task, steps, share, question):
    monkeypatch.setattr(quickstart, "HELD_OUT", 8)
    folder = tmp_path / "my run"
    assert main(["quickstart", "--task", task, "--steps", str(steps), "--output", str(folder)]) == 0
    text, keys = capsys.readouterr().out, find_lesson(task).job(1, folder, steps)
    if task == "search":
        pid, url = SERVER.search(text).groups()
        keys.append(f"retriever.url={url}")
        assert not is_running(int(pid))
    assert as_typed(keys) in text and question in text
    assert not share or re.search(share + r": [01]\.\d\d before, [01]\.\d\d after", text)
    assert "Exact-match accuracy on 8 held-out questions" in text and f"({steps} steps of GRPO" in text
    assert (folder / "reward.png").exists() and (folder / f"global_step_{steps}" / "config.json").exists()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, BurnishError])
def test_the_server_ends_whatever_happens(tmp_path, capsys, failure):
    facts.write_corpus(1, quickstart_agents.corpus(tmp_path))
    with pytest.raises(failure), serving(tmp_path) as keys:
        pid, url = SERVER.search(capsys.readouterr().out).groups()
        assert keys == [f"retriever.url={url}"] and is_running(int(pid))
        raise failure
    assert not is_running(int(pid))


def test_a_server_that_does_not_come_up_or_end_is_reported_and_made_to_end(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.write_text("burnish: error: no such index")
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    ended.wait()
    with pytest.raises(BurnishError, match="server ended with 2; its output: burnish: error: no such index"):
        wait_for(ended, log)
    silent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with pytest.raises(BurnishError, match="the retrieval server did not answer within 0 s"):
            wait_for(silent, log, seconds=0.2)
    finally:
        end(silent)
    corpus = quickstart_agents.corpus(tmp_path)
    corpus.parent.mkdir()
    corpus.write_text("not JSON\n")
    with pytest.raises(BurnishError, match=r"burnish retriever index failed: .*corpus\.jsonl"), serving(tmp_path):
        pytest.fail("there is no index to serve")
    monkeypatch.setattr(quickstart_agents, "STOP_S", 0.2)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    deaf = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    deaf.stdout.readline()
    end(deaf)
    assert deaf.poll() is not None


@pytest.mark.parametrize("task", quickstart.TASKS)
def test_every_task_introduces_itself_and_its_command_is_one_key_a_line_and_can_be_pasted(task):
    lesson = find_lesson(task)
    assert max(map(len, lesson.introduction.splitlines())) <= 80
    keys = lesson.job(1, Path("my runs/it's"), 60)
    assert len(as_typed(keys).splitlines()) == len(keys) + 1
    # A shell takes a backslash and the newline after it away; so does shlex, which splits as a shell does.
    assert shlex.split(as_typed(keys).replace("\\\n", "")) == ["burnish", "ppo", *keys]


def test_the_shares_tell_a_search_and_a_call_from_what_is_none():
    (searched,), (called,) = (lesson.shares for lesson in (SEARCH, CALCULATOR))
    found = '<search> rival of Arba </search>\n\n<information>Doc 1(Title: "Arba") …</information>\n\n<answer> …'
    assert searched.holds(found) and not searched.holds("<answer> Selnor </answer>")
    assert not searched.holds("<search> rival of Arba </answer>\nMy previous action is invalid. …")
    result = (
        "<tool_call>…</tool_call><|end|>\n<|start|>tool\n{}<|end|>\n<|start|>assistant\n<answer> 6 </answer><|end|>"
    )
    assert called.holds(result.format("354752")) and not called.holds(result.format("Error: that is no JSON"))
    assert not called.holds("<answer> 354752 </answer><|end|>")


def result_of(lesson, folder, *further):
    with_more = replace(lesson, job=lambda *arguments: [*lesson.job(*arguments), *further])
    return learn(1, folder, with_more, parser().parse_args([]))


@pytest.mark.long
def test_search_is_learnt_and_only_because_what_was_found_is_masked(tmp_path, capsys):
    masked = result_of(SEARCH, tmp_path / "masked")
    unmasked = result_of(SEARCH, tmp_path / "unmasked", "actor_rollout_ref.actor.state_masking=false")
    assert masked.before == unmasked.before <= 0.3 and masked.after >= 0.8
    assert unmasked.after < masked.after - 0.3
    shares = re.findall(r"valid search: ([\d.]+) before, ([\d.]+) after", capsys.readouterr().out)
    before, after = map(float, shares[0])
    assert before <= 0.4 and after >= 0.9


@pytest.mark.long
def test_the_calculator_is_learnt(tmp_path):
    result = result_of(CALCULATOR, tmp_path)
    assert result.before <= 0.3 and result.after >= 0.8
