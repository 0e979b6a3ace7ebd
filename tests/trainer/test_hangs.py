"""A hang at every kind of wait inside a run: `burnish status` shows it, it leaves a dump of all threads and an event,
and a typed error ends it. Where none can, the process exits and the command starts again (test_hang_restart.py).
Workers that hang are in cluster/test_failures.py.
"""

import asyncio
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from burnish.agents.server import ServerManager
from burnish.errors import DeadlineError
from burnish.tracking import watchdog
from burnish.tracking.run_status import read_status
from burnish.trainer.checkpoint import CheckpointStore
from tests.trainer.conftest import events
from tests.trainer.scripted import FAUST, Reply, answering, call, question, write_echo

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"]
ROOM = ["data.max_prompt_length=64", "data.max_response_length=400", "custom_reward_function.path=null"]
AGENTS = [*GRPO, *ROOM, "trainer.total_training_steps=1", "data.val_files=null", "reward.max_failure_ratio=0.9"]
QUESTIONS = [question(f"Who wrote Faust? {i}") for i in range(4)]
LIMIT_S = 5.0  # of waits: what does not hang must be done by then, on a busy machine
SOON_LATE = f"trainer.checkpoint_timeout={LIMIT_S}"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK_S", 0.05)
    monkeypatch.setattr(watchdog, "STATUS_S", 0.05)


@contextmanager
def looking():
    """What `burnish status` shows of the run `run` while it goes on: the waits of its controller, as sets of words."""
    seen, over = set(), threading.Event()

    def look():
        folder = Path("run").absolute()
        while not over.wait(0.1):
            if folder.joinpath("status").exists():
                for process in read_status(folder).processes:
                    seen.update((wait["kind"], wait["owner"], wait["subject"], wait["limit"]) for wait in process.waits)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def late(kind):
    """The event of a wait that was late, whose dump is there; its text."""
    told = [event for event in events("late_wait") if event["wait"] == kind]
    assert told, f"no wait for {kind} was late: {events('late_wait')}"
    return told[0], Path(told[0]["stacks"]).read_text()


def test_tool_that_hangs_costs_its_trajectory(agents, metrics_of):
    def write(asked):
        hangs = asked.uid == 0 and asked.sample == 1
        return "<answer>Goethe</answer>" if asked.turn else call("hang" if hangs else "go")

    turns = "actor_rollout_ref.rollout.multi_turn"
    with looking() as seen:
        agents(write, QUESTIONS, *AGENTS, write_echo(), f"{turns}.enable=true", f"{turns}.tool_timeout={LIMIT_S}")
    assert ("tool", "uid 0, sample 1", "tool echo: execute", LIMIT_S) in seen
    (line,) = metrics_of("run")
    assert line["failures/tool"] == 1 and line["failures/late_waits"] >= 1
    event, text = late("tool")
    assert event["subject"] == "tool echo: execute" and event["waited_s"] >= LIMIT_S
    assert "in execute" in text and "echo.py" in text and "thread MainThread" in text


def test_retriever_that_hangs_costs_its_trajectories(agents, metrics_of):
    def write(asked):
        looks_up = asked.sample == 1 and not asked.turn
        return "<search>Faust</search>" if looks_up else f"<answer>{asked.sample}</answer>"

    with answering(FAUST, Reply(answer=[], seconds=1000)) as url, looking() as seen:
        agents(
            write, QUESTIONS, *AGENTS, "do_search=true", "max_turns=2", f"retriever.url={url}", "retriever.topk=1",
            f"retriever.timeout={LIMIT_S}", "retriever.retries=0",
        )  # fmt: skip
    owners = {owner for kind, owner, subject, limit in seen if kind == "retriever"}
    assert ("retriever", "uid 0, sample 1", f"{url}: Faust", LIMIT_S) in seen, owners
    (line,) = metrics_of("run")
    assert line["failures/tool"] == 4
    event, text = late("retriever")
    assert event["subject"] == f"{url}: Faust"
    assert "search/client.py" in text and "in post\n" in text, "while the request still hangs"


@pytest.mark.parametrize("retries", [0, 1])
def test_reward_function_that_hangs_costs_its_sample_or_is_retried(train, reward, metrics_of, retries):
    """In a process of its own, which is ended; with a retry, the second attempt finds the stone moved."""
    hang = "(Path('hung').exists() or (Path('hung').touch(), time.sleep(1000)))"
    hangs = f"import time; from pathlib import Path; {hang}; return float(len(solution_str) % 3)"
    reward(hangs.replace("; ", "\n    "))
    with looking() as seen:
        train(
            *GRPO, "data.val_files=null", "trainer.total_training_steps=1", f"reward.timeout={LIMIT_S}",
            f"reward.retries={retries}", "reward.num_workers=1", "reward.max_failure_ratio=0.5",
        )  # fmt: skip
    hung = [one for one in seen if one[0] == "reward" and "call" in one[2]]
    assert hung and hung[0][1].startswith("uid ") and hung[0][3] == LIMIT_S
    (line,) = metrics_of("run")
    assert line.get("failures/reward", 0) == 1 - retries
    event, text = late("reward")
    assert event["owner"].startswith("uid ") and "thread burnish-rewards" in text


def test_checkpoint_that_cannot_be_written_ends_the_run(train, monkeypatch):
    """The checkpoint before it is whole, and is gone on from."""
    never, seal = threading.Event(), CheckpointStore._seal

    def hang(store, folder, step, quality):
        if step == 2 and not never.is_set():
            never.wait()
            raise OSError("the disk is back, and nobody waits for it")
        seal(store, folder, step, quality)

    monkeypatch.setattr(CheckpointStore, "_seal", hang)
    run = [*GRPO, "data.val_files=null", "trainer.save_freq=1", "trainer.total_training_steps=2", SOON_LATE]
    told = r"writing checkpoint run/global_step_2 has not ended .*The previous checkpoint is whole"
    with looking() as seen, pytest.raises(DeadlineError, match=told):
        train(*run)
    assert ("checkpoint", "the trainer", "writing checkpoint run/global_step_2", LIMIT_S) in seen
    event, text = late("checkpoint")
    assert event["subject"] == "writing checkpoint run/global_step_2" and "in hang\n" in text
    assert read_status("run").state == "failed" and CheckpointStore("run").latest().name == "global_step_1"
    never.set()
    assert train(*run)["training/global_step"] == 2 and CheckpointStore("run").latest().name == "global_step_2"


def test_checkpoint_written_behind_training_that_hangs_ends_the_run(train, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(CheckpointStore, "_prune", lambda self, step: never.wait())
    async_save = "actor_rollout_ref.actor.checkpoint.async_save=true"
    with looking() as seen, pytest.raises(DeadlineError, match="writing checkpoint run/global_step_1 has not ended"):
        train(*GRPO, "data.val_files=null", "trainer.save_freq=1", async_save, SOON_LATE)
    never.set()
    written = {owner for kind, owner, subject, _ in seen if kind == "checkpoint"}
    assert {"burnish-checkpoint", "the trainer"} <= written, "the thread that writes, and the one that waits for it"
    event, text = late("checkpoint")
    assert event["subject"] == "writing checkpoint run/global_step_1"
    assert "thread burnish-checkpoint, which waits for" in text and "never.wait()" in text


def test_samples_that_cannot_be_written_end_the_run(train, monkeypatch):
    """Samples are written in the background; a checkpoint waits for them."""
    from burnish.tracking import run_folder

    never = threading.Event()
    monkeypatch.setattr(run_folder, "WRITE_DEADLINE_S", LIMIT_S)
    monkeypatch.setattr(run_folder, "json_line", lambda row: never.wait() and "")
    with looking() as seen, pytest.raises(DeadlineError, match="the disk is too slow or hangs"):
        train(*GRPO, "data.val_files=null", "trainer.save_freq=1")
    never.set()
    assert ("disk", "MainThread", "writing the queued samples", LIMIT_S) in seen
    assert "thread burnish-run-folder" in late("disk")[1]


def test_request_that_hangs_ends_the_run(train, monkeypatch):
    generate = ServerManager.generate

    class Stone:
        def __init__(self, engine):
            self.engine = engine

        def __getattr__(self, name):
            return getattr(self.engine, name)

        async def generate(self, request):
            if request.order[:2] == (0, 1):
                await asyncio.Event().wait()
            return await self.engine.generate(request)

    async def with_a_stone(self, *args, **kwargs):
        self._engine = Stone(self._engine)
        return await generate(self, *args, **kwargs)

    monkeypatch.setattr(ServerManager, "generate", with_a_stone)
    told = r"1 of 16 trajectories were not done .* uid 0, sample 1"
    with looking() as seen, pytest.raises(DeadlineError, match=told):
        train(*GRPO, "data.val_files=null", f"actor_rollout_ref.rollout.timeout={LIMIT_S}")
    assert ("engine", "uid 0, sample 1, turn 0") in {(kind, owner) for kind, owner, _, _ in seen}
    _, text = late("engine")
    assert "in with_a_stone\n" in text and "await asyncio.Event().wait()" in text, "while the request still hangs"
    subjects = {event["subject"] for event in events("late_wait")}
    assert subjects == {"16 trajectories of train", "request train/0.1.0"}, subjects
