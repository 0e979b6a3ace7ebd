"""Users' code that hangs, in each place where a run calls it, and the small command that runs it. Used by
test_hostile.py.

An act is what a method does; a place is the method. In every run a trajectory of the hostile part (uid 0) has two
honest neighbours, whose tool answers.
"""

import asyncio
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOREVER = 1e6
LIMIT_S = 5.0  # of calls: an honest one is done by then, on a busy machine


def rest():
    while True:
        time.sleep(0.05)


async def in_thread():
    await asyncio.to_thread(time.sleep, FOREVER)


async def in_looping_thread():
    await asyncio.to_thread(rest)


async def in_its_own_pool():
    await asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), rest)


async def in_many_threads():
    await asyncio.gather(*(asyncio.to_thread(rest) for _ in range(40)))


async def swallows_cancellation():
    while True:
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            continue


async def swallows_everything():
    while True:
        try:
            await asyncio.sleep(FOREVER)
        except BaseException:  # noqa: BLE001 - as bad code does
            continue


async def shielded():
    while True:
        try:
            await asyncio.shield(asyncio.create_task(swallows_cancellation()))
        except asyncio.CancelledError:
            continue


async def never():
    await asyncio.get_running_loop().create_future()


async def deadlock():
    lock = asyncio.Lock()
    await lock.acquire()
    await lock.acquire()


async def spins():
    while True:
        await asyncio.sleep(0)


async def hangs_when_cancelled():
    try:
        await asyncio.sleep(FOREVER)
    finally:
        await swallows_cancellation()


async def child():
    await (await asyncio.create_subprocess_exec("sleep", "1000000")).wait()


async def generator():
    async def numbers():
        try:
            while True:
                yield 1
        finally:
            await swallows_cancellation()

    kept.append(numbers())
    await anext(kept[-1])


async def leaves_tasks():
    kept.extend(asyncio.create_task(swallows_cancellation()) for _ in range(3))
    await asyncio.sleep(0)


async def leaves_thread():
    threading.Thread(target=rest, name="left").start()


async def leaves_pool():
    ThreadPoolExecutor(2, "left").submit(rest)


async def blocks():
    rest()


async def exits():
    sys.exit(7)


async def interrupts():
    raise KeyboardInterrupt


async def raises_base():
    raise BaseException("of no known kind")


async def raises_cancelled():
    raise asyncio.CancelledError


async def raises_wordless():
    class Wordless(Exception):
        def __str__(self):
            raise ValueError("no words")

    raise Wordless


async def returns_nonsense():
    return object()


kept = []  # until the process ends


def command(folder: str, place: str, act: str, ahead: bool) -> None:
    """A process of its own: `burnish …` in small, with one of the parts that users bring."""
    os.setsid()
    os.chdir(folder)
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    from burnish import loop_thread
    from burnish.agents import environment, guarded, runner
    from burnish.entry import ending
    from burnish.entry.guard import guard
    from burnish.tracking import tracker, watchdog

    # All limits in seconds, so that 50 of these end soon.
    loop_thread.REST_SECONDS = environment.CLOSE_S = runner.CANCELLED_S = guarded.ENDING_S = 1.0
    watchdog.LOOK_S, watchdog.STATUS_S, watchdog.GRACE_S, tracker.LOGGER_S = 0.1, 0.1, 2.0, 2.0
    ending.REPORT_S, ending.LEAVE_S = 0.2, 2.0
    with ending.watched(), ending.terminated_as_interrupted():
        code = guard(lambda _: run(place, globals()[act], ahead), [])
    ending.leave(code)


def run(place, act, ahead):
    from burnish.agents.base import register_agent_loop
    from burnish.agents.interactions import BaseInteraction
    from burnish.agents.loops.single_turn import SingleTurnAgentLoop
    from burnish.agents.runner import TrajectoryRunner
    from burnish.agents.tools.base import BaseTool, ToolResponse
    from burnish.agents.tools.schema import function_schema
    from burnish.config import PPOConfig
    from burnish.models.tiny import byte_tokenizer
    from burnish.rollout.base import Sampling
    from burnish.tracking import RunFolder, Tracker
    from burnish.tracking.base import Backend
    from burnish.workers.rollouts import agent_settings
    from tests.agents.conftest import WritingEngine

    async def do(here, answer=None):
        return answer if here != place or (returned := await act()) is None else returned

    class Tool(BaseTool):
        def __init__(self, name):
            super().__init__({}, function_schema(name, "Answers.", {"text": {"type": "string"}}, ["text"]))
            self.method = "tool.{}" if name == "hostile" else "{} of an honest tool"

        async def create(self, instance_id, **kwargs):
            await do(self.method.format("create"))

        async def execute(self, instance_id, parameters, **kwargs):
            return await do(self.method.format("execute"), (ToolResponse("an honest answer"), 0.0, {}))

        async def calc_reward(self, instance_id, **kwargs):
            return await do(self.method.format("calc_reward"), 0.0)

        async def release(self, instance_id, **kwargs):
            await do(self.method.format("release"))

        async def close(self):
            await do(self.method.format("close"))

    class Interaction(BaseInteraction):
        async def start_interaction(self, instance_id=None, **kwargs):
            return await do("interaction.start", instance_id)

        async def generate_response(self, instance_id, messages, **kwargs):
            return await do("interaction.respond", (True, "", 1.0, {}))

        async def calculate_score(self, instance_id, **kwargs):
            return await do("interaction.score", 0.0)

        async def finalize_interaction(self, instance_id, **kwargs):
            await do("interaction.finalize")

        async def close(self):
            await do("interaction.close")

    class Loop(SingleTurnAgentLoop):
        async def run(self, sampling_params, **row):
            await do("loop.run")
            return await super().run(sampling_params, **row)

    class Logger(Backend):
        def log(self, metrics, step):
            asyncio.run(do("logger.log"))

        def close(self, failed=False):
            asyncio.run(do("logger.close"))

    config = PPOConfig()
    config.data.max_prompt_length = config.data.max_response_length = 4000
    config.actor_rollout_ref.rollout.multi_turn.tool_timeout = LIMIT_S
    config.trainer.default_local_dir, config.trainer.logger = "run", []
    settings, tokenizer = agent_settings(config), byte_tokenizer()
    settings = type(settings)(**{**vars(settings), "runs_ahead": ahead})
    kind = place.partition(".")[0]

    def turns(name):
        return [f'<tool_call>{{"name": "{name}", "arguments": {{"text": "hi"}}}}</tool_call>', "done"]

    engine = WritingEngine(tokenizer, {(uid, 0): turns("honest" if uid else "hostile") for uid in range(3)})
    common = {"sample": 0, "raw_prompt": [{"role": "user", "content": "go"}]}
    rows = [{"uid": uid, "agent_name": "tool_agent", **common} for uid in range(3)]
    if kind == "interaction":
        engine.texts[0, 0] = ["done"]
        rows[0]["interaction_kwargs"] = {"name": "mine"}
    if kind == "loop":
        register_agent_loop("hostile", Loop)
        rows[0]["agent_name"] = "hostile"
    tracker = Tracker(config.trainer, RunFolder("run"))
    tracker._backends.append(Logger(tracker._backends[0].facts))
    outcome = {}
    with tracker:
        tracker.start()
        runner = TrajectoryRunner(engine, tokenizer, settings)
        runner.environment.tools = {name: Tool(name) for name in ("honest", "hostile")}
        runner.environment.interactions = {"mine": Interaction({})}
        runner.environment.tools_of = lambda row: runner.environment.tools
        try:
            done = runner.run(rows, Sampling(), namespace="train", seed=7, deadline_s=4 * LIMIT_S)
            outcome = {one.row["uid"]: one.output.extra_fields.get("failure", "") for one in done}
            tracker.log({"failures": sum(map(bool, outcome.values()))}, 1)
        finally:
            turns_done = {uid: len(record) for (uid, _), record in engine.record.items()}
            Path("outcome.json").write_text(json.dumps({"failures": outcome, "turns": turns_done}))
            runner.close()
