"""A hang at every kind of wait inside a run: it is in the status while it lasts, leaves a dump of all threads and an
event, and a typed error ends it. Workers that hang are in cluster/test_hangs.py.
"""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from burnish import waits
from burnish.agents.server import ServerManager
from burnish.data.files import write_parquet
from burnish.errors import DeadlineError
from burnish.models.tiny import write_tiny_model
from burnish.rewards import scoring
from burnish.rollout.hf.batch import LeftPaddedBatch
from burnish.rollout.hf.engine import HFEngine
from burnish.tracking import watchdog
from burnish.tracking.run_status import read_status
from burnish.trainer import checkpoint
from burnish.trainer.checkpoint import CheckpointStore
from burnish.workers.model_folder import ModelFolder
from tests.trainer.scripted import FAUST, Reply, answering, call, follow, question

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"]
ROOM = ["data.max_prompt_length=64", "data.max_response_length=400", "custom_reward_function.path=null"]
AGENTS = [*GRPO, *ROOM, "trainer.total_training_steps=1", "data.val_files=null", "reward.max_failure_ratio=0.9"]
QUESTIONS = [question(f"Who wrote Faust? {i}") for i in range(4)]
LIMIT_S = 10.0  # of waits: what does not hang must be done by then, on a busy machine
SOON_LATE = f"trainer.checkpoint_timeout={LIMIT_S}"
TOOL = '''
import asyncio, time
from burnish.agents.tools import BaseTool, ToolResponse

class Stone(BaseTool):
    """Does not answer the sample that asks for it."""

    SCHEMA = {{"type": "function", "function": {{"name": "stone", "description": "Hangs.", "parameters": {{
        "type": "object", "properties": {{"text": {{"type": "string"}}}}, "required": ["text"]}}}}}}

    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["text"] == "hang":
            {hang}
        return ToolResponse("done"), 0.0, {{}}
'''


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watchdog, "LOOK_S", 0.05)
    monkeypatch.setattr(watchdog, "STATUS_S", 0.05)
    monkeypatch.setattr(watchdog, "GRACE_S", 3.0)  # a thread that is slow to end itself is not struck
    monkeypatch.setattr(watchdog, "TRIES", 1000)  # one that is slow to hear must not end the tests
    monkeypatch.setattr(waits, "PROMPT_S", 0.5)  # less, as it is


@pytest.fixture(scope="module")
def roomy(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("roomy") / "model", context=4096)


@pytest.fixture
def agents(train, roomy, monkeypatch):
    def run(write, *overrides):
        write_parquet(QUESTIONS, "train.parquet")
        follow(monkeypatch, write)
        return train(f"actor_rollout_ref.model.path={roomy}", *AGENTS, *overrides)

    return run


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


def events(kind):
    lines = map(json.loads, Path("run/events.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def late(kind):
    """The event of a wait that was late, whose dump is there; its text."""
    told = [event for event in events("late_wait") if event["wait"] == kind]
    assert told, f"no wait for {kind} was late: {events('late_wait')}"
    return told[0], Path(told[0]["stacks"]).read_text()


@pytest.mark.parametrize(
    ("hang", "place"), [("await asyncio.sleep(1000)", "in execute"), ("time.sleep(1000)", "time.sleep(1000)")]
)
def test_a_tool_hangs_and_its_trajectory_is_dropped(agents, metrics_of, hang, place):
    """The first one ends at its time-out. The second blocks the event loop of all: only the watchdog can end it."""
    Path("stone.py").write_text(TOOL.format(hang=hang))
    Path("tools.yaml").write_text("tools:\n  - class_name: stone.py:Stone\n")

    def write(asked):
        hangs = asked.uid == 0 and asked.sample == 1
        return "<answer>Goethe</answer>" if asked.turn else call("hang" if hangs else "go", "stone")

    with looking() as seen:
        agents(
            write,
            "actor_rollout_ref.rollout.multi_turn.enable=true",
            "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",
            f"actor_rollout_ref.rollout.multi_turn.tool_timeout={LIMIT_S}",
        )
    assert ("tool", "uid 0, sample 1", "tool stone: execute", LIMIT_S) in seen
    (line,) = metrics_of("run")
    assert line["failures/tool"] == 1 and line["failures/late_waits"] >= 1
    event, text = late("tool")
    assert event["subject"] == "tool stone: execute" and event["waited_s"] >= LIMIT_S
    assert place in text and "stone.py" in text and "thread MainThread" in text


def test_a_retriever_hangs_and_the_trajectories_are_dropped(agents, metrics_of):
    def write(asked):
        looks_up = asked.sample == 1 and not asked.turn
        return "<search>Faust</search>" if looks_up else f"<answer>{asked.sample}</answer>"

    with answering(FAUST, Reply(answer=[], seconds=1000)) as url, looking() as seen:
        agents(
            write, "do_search=true", "max_turns=2", f"retriever.url={url}", f"retriever.timeout={LIMIT_S}",
            "retriever.retries=0", "retriever.topk=1",
        )  # fmt: skip
    owners = {owner for kind, owner, subject, limit in seen if kind == "retriever"}
    assert ("retriever", "uid 0, sample 1", f"{url}: Faust", LIMIT_S) in seen, owners
    (line,) = metrics_of("run")
    assert line["failures/tool"] == 4
    event, text = late("retriever")
    assert event["subject"] == f"{url}: Faust"
    assert "search/client.py" in text and "in post\n" in text, "while the request still hangs"


@pytest.mark.parametrize("retries", [0, 1])
def test_a_reward_function_hangs_and_its_sample_is_dropped_or_tried_again(train, reward, metrics_of, retries):
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


def test_a_built_in_scorer_hangs_and_its_sample_is_dropped(train, monkeypatch, metrics_of):
    """It is called in place, in the event loop of all trajectories."""
    hung, bind = threading.Event(), scoring.bind

    def bound(function, *about):
        def compute_score(**given):
            if not hung.is_set():
                hung.set()
                time.sleep(1000)
            return function(**given)

        return replace(bind(function, *about), call=compute_score)

    monkeypatch.setattr(scoring, "bind", bound)
    with looking() as seen:
        train(
            *GRPO, "custom_reward_function.path=null", "data.val_files=null", "trainer.total_training_steps=1",
            f"reward.timeout={LIMIT_S}", "reward.max_failure_ratio=0.5",
        )  # fmt: skip
    assert any(kind == "reward" and owner.startswith("uid ") for kind, owner, _, _ in seen)
    (line,) = metrics_of("run")
    assert line["failures/reward"] == 1
    assert "time.sleep(1000)" in late("reward")[1]


def test_writing_a_checkpoint_hangs_and_the_run_ends(train, monkeypatch):
    """The checkpoint before it is whole, and is gone on from."""
    never, write_manifest = threading.Event(), checkpoint._write_manifest

    def hang(folder, step):
        if step == 2 and not never.is_set():
            never.wait()
            raise OSError("the disk is back, and nobody waits for it")
        write_manifest(folder, step)

    monkeypatch.setattr(checkpoint, "_write_manifest", hang)
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


def test_reading_a_checkpoint_hangs_and_the_run_ends(train, monkeypatch):
    run = [*GRPO, "data.val_files=null", "trainer.save_freq=1"]
    train(*run, "trainer.total_training_steps=1")
    monkeypatch.setattr(ModelFolder, "load", lambda self, folder: time.sleep(1000))
    with pytest.raises(
        DeadlineError, match=r"reading checkpoint run/global_step_1/actor \(the trainer\) has not ended"
    ):
        train(*run, "trainer.total_training_steps=2", SOON_LATE)


def test_writing_behind_training_hangs_and_the_run_ends(train, monkeypatch):
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


def test_the_disk_hangs_and_samples_cannot_be_written(train, monkeypatch):
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


def test_the_engine_hangs_and_the_run_ends(train, monkeypatch):
    """One request never gets its answer; the others do."""
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
    with (
        looking() as seen,
        pytest.raises(DeadlineError, match=r"1 of 16 trajectories were not done .* uid 0, sample 1"),
    ):
        train(*GRPO, "data.val_files=null", f"actor_rollout_ref.rollout.timeout={LIMIT_S}")
    assert ("engine", "uid 0, sample 1, turn 0") in {(kind, owner) for kind, owner, _, _ in seen}
    _, text = late("engine")
    assert "in with_a_stone\n" in text and "await asyncio.Event().wait()" in text, "while the request still hangs"
    told = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    subjects = {line["subject"] for line in told if line["kind"] == "late_wait"}
    assert subjects == {"16 trajectories of train", "request train/0.1.0"}, subjects


@pytest.mark.slow
@pytest.mark.parametrize(("counted", "keys"), [("failures", ["data.val_files=null"]), ("val-failures", [])])
def test_a_step_of_the_engine_hangs_and_a_new_engine_takes_its_place(train, monkeypatch, metrics_of, counted, keys):
    """`rollout.timeout` sets no limit; the engine's own for a step does."""
    hung, step, init = threading.Event(), LeftPaddedBatch.step, HFEngine.__init__

    def hang(self):
        if not hung.is_set():
            hung.set()
            while True:
                time.sleep(0.01)
        return step(self)

    monkeypatch.setattr(watchdog, "GRACE_S", 20.0)  # the engine looks at its steps every second or two
    monkeypatch.setattr(LeftPaddedBatch, "step", hang)
    monkeypatch.setattr(HFEngine, "__init__", lambda *given, **how: init(*given, **{**how, "step_deadline_s": LIMIT_S}))
    with looking() as seen:
        train(*GRPO, *keys, "actor_rollout_ref.rollout.name=hf", "trainer.total_training_steps=1")
    steps = {owner for kind, owner, subject, limit in seen if subject.startswith("a step of ") and limit == LIMIT_S}
    assert steps == {"the rollout engine"}
    event, text = late("engine")
    assert event["owner"] == "the rollout engine" and "in hang\n" in text
    line = metrics_of("run")[0]
    assert line[f"{counted}/replica_restarts"] == 1 and line[f"{counted}/requests_again"] > 0
    (event,) = events("replica_restart")
    assert (event["replica_restarts"], event["requests_again"]) == (1, line[f"{counted}/requests_again"])
