"""A worker process that hangs: it is in the status, where it hangs is in the dump, and the run ends or goes on."""

import threading
from pathlib import Path

import pytest

from burnish.errors import DeadlineError
from burnish.tracking.run_status import read_status
from tests.trainer.cluster.conftest import LONG
from tests.trainer.cluster.struck import strike
from tests.trainer.conftest import GRPO, events

RUN = [*GRPO, "trainer.save_freq=1", "trainer.total_training_steps=2"]
HANG_S = 40.0  # in which all that does not hang must be done, also the loading of models, on a busy machine


def look(seen, over):
    folder = Path("run").absolute()
    while not over.wait(0.2):
        if folder.joinpath("status").exists():
            for process in read_status(folder).processes:
                seen.update((process.name, wait["kind"], wait["subject"]) for wait in process.waits)
                seen.add((process.name, "", ""))


@pytest.mark.ray
@pytest.mark.parametrize("how", [pytest.param("stop", marks=LONG), "sleep"])
def test_a_hanging_worker_is_reported(struck, how):
    """`stop`: nothing of its process runs any more. `sleep`: its thread that computes hangs."""
    strike("update", rank=1, step=2, how=how)
    seen, over = set(), threading.Event()
    thread = threading.Thread(target=look, args=(seen, over))
    thread.start()
    try:
        with pytest.raises(DeadlineError, match=f"has not finished within {HANG_S:g} s"):
            struck(2, *RUN, "trainer.max_restarts=0", f"trainer.worker_timeout={HANG_S}")
    finally:
        over.set()
        thread.join()
    assert ("controller", "worker", "StruckWorker.update_actor on pool global_pool") in seen
    assert {("global_pool-0", "", ""), ("global_pool-1", "", ""), ("agents-0", "", "")} <= seen, "all have a status"
    (event,) = events("late_wait")
    assert event["wait"] == "worker" and event["subject"] == "StruckWorker.update_actor on pool global_pool"
    text = Path(event["stacks"]).read_text()
    hung = text.partition("\nworkers:\n")[2].partition("rank 1 of 2 of pool 'global_pool'")[2]
    assert ("does not answer" if how == "stop" else "time.sleep(1000)") in hung, text
    status = read_status("run")
    assert status.state == "failed" and status.stacks == event["stacks"]
