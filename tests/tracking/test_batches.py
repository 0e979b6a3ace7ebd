"""What is shown of a batch of trajectories while it is generated: progress line, log file and `burnish status`."""

import json

from burnish.tracking.batches import current_batch
from burnish.tracking.run_status import as_text, read_status
from burnish.tracking.watchdog import Watchdog
from burnish.waits import BatchProgress, waiting
from tests.tracking.test_console import METRICS, backend

BATCH = BatchProgress("generating", 37, 64, 1234.4, 40.2, 12.0)
SAID = "generating 37/64, about 00:40 left, 1,234 tok/s"


def test_batch_is_in_the_progress_line_instead_of_the_waits_for_its_tokens(tmp_path):
    logger, stream = backend(tmp_path, terminal=True, width=200)
    with (
        waiting("engine", "", "64 trajectories of train", None) as batch,
        waiting("tool", "uid 3", "search", 60) as tool,
    ):
        batch.progress, batch.since, tool.since = lambda: BATCH, batch.since - 12, tool.since - 9
        logger.begin()
        logger.close()
    assert f"step 0/80 · {SAID} · waiting 9 s for search (uid 3)" in stream.getvalue()


def test_log_file_gets_lines_at_doubling_intervals_and_none_of_a_short_batch(tmp_path):
    logger, stream = backend(tmp_path, terminal=False)
    for seconds in [*range(0, 25), *range(0, 300), *range(0, 31)]:  # three batches, seen once a second
        with waiting("engine", "", "64 trajectories of train", None) as wait:
            wait.progress = lambda seconds=seconds: BATCH._replace(seconds=float(seconds))
            logger._lines.look()
    after = [line.removeprefix(SAID).strip(" ()") for line in stream.getvalue().splitlines()]
    assert after == ["after 00:30", "after 01:00", "after 02:00", "after 04:00", "after 00:30"]
    logger.log(METRICS, 1)
    logger.close()


def test_batches_of_other_processes_are_one_on_the_controller_while_it_waits_for_them(tmp_path):
    with waiting("engine", "", "32 trajectories of train", None) as wait:
        for name, progress in (("agents-0", BATCH), ("agents-1", BATCH._replace(done=30, left_s=None))):
            wait.progress = lambda progress=progress: progress
            Watchdog(tmp_path, name)._write_status()
    (tmp_path / "status" / "other.json").write_text(json.dumps({"batches": [[1]]}))
    assert current_batch(tmp_path) is None, "the controller does not wait for them"
    with waiting("worker", "", "AgentLoopWorker.finish_sequences on pool agents", None):
        assert current_batch(tmp_path) == ("generating", 67, 128, 2468.8, 40.2, 12.0)


def test_batch_is_in_the_status_of_its_process(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with waiting("engine", "", "64 trajectories of train", None) as wait:
        wait.progress = lambda: BATCH
        Watchdog(tmp_path, "controller")._write_status()
    assert f"    {SAID}\n" in as_text(read_status(tmp_path))
