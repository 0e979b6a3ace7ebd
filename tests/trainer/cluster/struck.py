"""A policy worker that comes to harm where a test says so: what `strike` writes, the worker reads, wherever it runs.

    strike("update", rank=1, step=3, how="kill")        once; `always=True` for every attempt of the run

`where` is `update` (in the middle of an update's backward passes, while others wait in collectives), `generation`
(while completions are asked of its replica), `save` (between the files of a checkpoint) or `publish`.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

import burnish.engine.state
from burnish.rollout.base import Completion, OnToken, Request
from burnish.workers.actor_rollout_ref import ActorRolloutRefWorker

ORDER, STRUCK = Path("strike.json"), Path("struck")


def strike(where: str, rank: int = 1, step: int = 2, how: str = "kill", always: bool = False) -> None:
    ORDER.write_text(json.dumps({"where": where, "rank": rank, "step": step, "how": how, "always": always}))


def seconds_since_strike() -> float:
    return time.time() - STRUCK.stat().st_mtime


def take_strike(where: str, rank: int, step: int) -> bool:
    """Whether this is the place: then it comes to the harm, if that is one that takes no part of the worker."""
    if not ORDER.exists():
        return False
    order = json.loads(ORDER.read_text())
    if (order["where"], order["rank"], order["step"]) != (where, rank, step):
        return False
    if not order["always"]:
        ORDER.unlink()
    STRUCK.touch()
    print(f"about to suffer {order['how']} in {where} of step {step}", flush=True)  # the last line of its log
    match order["how"]:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)  # the signal may reach another thread first
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(1000)
        case "sleep":
            time.sleep(1000)
        case "raise":
            raise ZeroDivisionError("a bug on one rank")
    return True


class StruckWorker(ActorRolloutRefWorker):
    """The policy; overridden methods keep their marks."""

    version = 0

    def init_model(self) -> None:
        super().init_model()
        generate = self.engine.generate

        async def watched(request: Request, on_token: OnToken | None = None) -> Completion:
            if not request.request_id.startswith("val/"):
                take_strike("generation", self.rank, self.version)
            return await generate(request, on_token)

        self.engine.generate = watched  # type: ignore[method-assign]
        save = self.model_folder.save

        def watched_save(folder: Path) -> None:
            step = int(folder.parent.name.split("global_step_")[1].split(".")[0])
            save_file = burnish.engine.state.save_file

            def write(tensors: Any, file: Path, **kwargs: Any) -> None:
                save_file(tensors, file, **kwargs)
                take_strike("save", self.rank, step)  # its first file is there, the others are not

            burnish.engine.state.save_file = write
            try:
                save(folder)
            finally:
                burnish.engine.state.save_file = save_file

        self.model_folder.save = watched_save  # type: ignore[method-assign]

    def update_weights(self, version: int) -> None:
        self.version = version + 1  # the step that generates with it
        new_weights = self.replica._new_weights

        def harmed(number: int) -> Any:
            for bucket in new_weights(number):
                yield bucket
                if take_strike("publish", self.rank, version + 1):  # the bucket is there, the proof is to come
                    with torch.no_grad():
                        next(self.replica.module.parameters()).view(-1)[7] += 1e-3

        self.replica._new_weights = harmed  # type: ignore[method-assign]
        try:
            super().update_weights(version)
        finally:
            self.replica._new_weights = new_weights  # type: ignore[method-assign]

    def update_actor(self, data: Any, step: int) -> Any:
        loss = self.policy_loss

        def watched(inputs: Any) -> Any:
            take_strike("update", self.rank, step)
            return loss(inputs)

        self.policy_loss = watched
        try:
            return super().update_actor(data, step)
        finally:
            self.policy_loss = loss
