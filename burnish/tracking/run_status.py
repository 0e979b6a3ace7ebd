"""What a run is doing, as `burnish status` prints it: read from what `Tracker`, `RunFolder` and the watchdogs of its
processes leave in its folder, so nothing of it has to run, or to answer."""

import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from burnish.errors import ConfigError
from burnish.literal import one_line
from burnish.tracking.batches import batch_in_words, read_batches
from burnish.tracking.console import COLUMNS
from burnish.tracking.failure import ERROR_FILE, read_failure
from burnish.tracking.jsonl import METRICS_FILE, last_lines
from burnish.tracking.lock import LOCK_FILE, holder
from burnish.tracking.watchdog import EARLY, STACKS, STATUS
from burnish.waits import BatchProgress, limit_in_words

CONTROLLER = "controller"
SILENT_S = 15.0  # without a new status, which comes every five seconds
SKEW_S = 60.0  # by which the clocks of machines may differ
EVENTS = 5  # shown
SEARCHED = 500  # of the last events, for findings
TAIL_LINES = 5  # of the metrics, of which another program may have spoilt the last
WAITS = 5  # shown of each process
VALUES = 3  # shown of a run in a list
FINDING, SUBJECT, OWNER, MESSAGE = 160, 70, 28, 400  # characters of a line
MARKS = ("config.yaml", METRICS_FILE, "events.jsonl", f"{STATUS}/*", LOCK_FILE, ERROR_FILE)  # of a run's folder
DEPTH = 3  # folders that runs are looked for in: project, run, and a run of a sweep


@dataclass(frozen=True)
class RunProcess:
    name: str
    where: str
    silent_s: float
    late: int
    counts: dict[str, int]
    waits: list[dict[str, Any]]
    host: str = ""
    batches: list[BatchProgress] = field(default_factory=list)


@dataclass(frozen=True)
class RunStatus:
    """What is known of a run. Its `state` is one of

    starting, running      as its processes report
    silent                 it holds the folder and reports nothing
    done, failed, stopped  as it reported at its end
    dead                   it ended without a last report
    unknown                no process of it has left a status
    """

    folder: str
    state: str
    held_by: str | None
    step: int | None
    steps: int | None
    logged_s: float | None  # since the last line of metrics.jsonl
    processes: list[RunProcess] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)  # the newest of each health rule
    stacks: str | None = None  # the newest dump
    stacks_s: float | None = None
    has_checkpoint: bool = False
    metric: str | None = None  # the first of the console's columns that the last line has, with their values
    error: dict[str, Any] | None = None  # error.json

    @property
    def age_s(self) -> float | None:
        """Since it was last heard of."""
        ages = [one.silent_s for one in self.processes if one.name == CONTROLLER]
        ages += [] if self.logged_s is None else [self.logged_s]
        ages += [] if self.error is None else [time.time() - self.error["time"]]
        return min(ages, default=None)


def read_status(folder: str | Path) -> RunStatus:
    """The status of a current or past run; ConfigError where there is none."""
    path = Path(folder).expanduser()
    if not is_run(path):
        what = "there is no such folder" if not path.is_dir() else "it holds no run"
        raise ConfigError(
            f"{folder}: {what}. Name the folder that trainer.default_local_dir names, by default "
            "outputs/<project_name>/<experiment_name>"
        )
    now, held_by = time.time(), holder(path)
    known = _statuses((path / STATUS).glob("*.json"))
    controller = known.pop(CONTROLLER, None)
    early = _statuses([path / STATUS / f"{CONTROLLER}{EARLY}"]).get(CONTROLLER)
    if early is not None and (controller is None or held_by == _holder(early)):  # else killed where another had ended
        controller = early
    if controller is not None:  # what is older belongs to an earlier run
        known = {name: one for name, one in known.items() if one["time"] >= controller["started"] - SKEW_S}
        known = {CONTROLLER: controller, **known}
    lines = [line for line in _lines(path / METRICS_FILE, TAIL_LINES) if isinstance(line.get("step"), int)]
    logged = lines[-1]["step"] if lines else None
    events = _lines(path / "events.jsonl", SEARCHED)
    reported = max((one["time"] for one in known.values()), default=0.0)
    (stacks, dumped), (_, logged_at) = _newest((path / STACKS).glob("*.txt")), _newest([path / METRICS_FILE])
    state, error = _state(controller, held_by, (path / LOCK_FILE).exists(), now - reported), read_failure(path)
    if error is not None and error["time"] > reported and state in ("unknown", "done", "stopped"):
        state = "failed"  # an attempt that ended before it began to write
    return RunStatus(
        folder=str(folder),
        state=state,
        held_by=held_by,
        step=logged if logged is not None else (controller or {}).get("step"),
        steps=(controller or {}).get("steps"),
        logged_s=now - logged_at if logged is not None else None,
        processes=[_process(one, now) for one in known.values()],
        events=[event for event in events if event.get("kind") != "finding"][-EVENTS:],
        findings=list({str(one.get("rule")): one for one in events if one.get("kind") == "finding"}.values()),
        stacks=stacks,
        stacks_s=now - dumped if stacks is not None else None,
        has_checkpoint=any(path.glob("global_step_*")),
        metric=_metric(lines[-1]) if lines else None,
        error=error,
    )


def is_run(folder: Path) -> bool:
    return any(any(folder.glob(mark)) for mark in MARKS)


def find_runs(root: str | Path) -> list[RunStatus]:
    """The runs below a folder, the one last heard of first. What a run has moved aside is none."""
    found: list[Path] = []
    top = Path(root).expanduser()
    for place, folders, _ in os.walk(top):
        path = Path(place)
        if is_run(path):
            found.append(path)
        if is_run(path) or len(path.relative_to(top).parts) == DEPTH:
            folders.clear()
    known = [read_status(path) for path in found]
    return sorted(known, key=lambda one: (one.age_s is None, one.age_s or 0.0, one.folder))


def _metric(line: dict[str, Any]) -> str | None:
    """As `reward 0.512, length 31.0`; not finite numbers are texts in JSON."""
    found = []
    for column in COLUMNS:
        name = column.metric(line)
        if name is not None and isinstance(line[name], int | float):
            with suppress(OverflowError):  # a whole number of another program
                found.append(f"{column.heading} {line[name]:{column.form}}")
    return ", ".join(found[:VALUES]) or None


def _statuses(files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """By the name of the process. What another program wrote there, or is just being moved, is passed over."""
    found = {}
    for file in sorted(files):
        try:
            one = json.loads(file.read_text(encoding="utf-8"))
            _process(one, 0.0)  # whether it has what is read of it
            times = {name: float(one[name]) for name in ("started", "time")}
            steps = {name: one.get(name) if isinstance(one.get(name), int) else None for name in ("step", "steps")}
            found[str(one["name"])] = {**one, **times, **steps, "state": str(one["state"])}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
    return found


def _lines(path: Path, count: int) -> list[dict[str, Any]]:
    try:
        return last_lines(path, count)
    except OSError:
        return []


def _newest(files: Iterable[Path]) -> tuple[str | None, float]:
    """The file that was written last, and when. A run that begins moves those of an earlier one away."""
    found = []
    for file in files:
        with suppress(OSError):
            found.append((file.stat().st_mtime, str(file)))
    when, file_name = max(found, default=(0.0, None))
    return file_name, when


def _state(controller: dict[str, Any] | None, held_by: str | None, has_lock: bool, silent_s: float) -> str:
    """A file system without locks has no holder: there the status alone decides. A run that ends removes its lock."""
    if controller is None:
        return "starting" if held_by else "dead" if has_lock else "unknown"
    reported = str(controller["state"])
    if reported not in ("starting", "running"):
        ends = held_by == _holder(controller)  # it still writes its last samples
        return "starting" if held_by and not ends else reported  # one that begins to write where another has ended
    if silent_s <= SILENT_S:
        return reported
    return "silent" if held_by else "dead"


def _holder(one: dict[str, Any]) -> str:
    """A process, by its status, as the lock would name it."""
    return f"process {one['pid']} on {one['host']}"


def _process(one: dict[str, Any], now: float) -> RunProcess:
    """KeyError, TypeError or ValueError where it is not what a watchdog writes."""
    waits = [
        {
            "kind": str(wait["kind"]), "owner": str(wait["owner"]), "subject": str(wait["subject"]),
            "age": float(wait["age"]), "limit": None if wait["limit"] is None else float(wait["limit"]),
        }
        for wait in one["waits"]
    ]  # fmt: skip
    batches = read_batches(one.get("batches", []))
    where, counts = f"pid {one['pid']} on {one['host']}", {str(kind): int(n) for kind, n in one["counts"].items()}
    silent_s = max(0.0, now - float(one["time"]))
    return RunProcess(str(one["name"]), where, silent_s, int(one["late"]), counts, waits, str(one["host"]), batches)


def as_text(status: RunStatus) -> str:
    """What `burnish status` prints."""
    lines = [
        f"{'run':<10}{one_line(status.folder)}",
        f"{'state':<10}{_in_words(status)}",
        f"{'step':<10}{_step(status)}",
    ]
    if status.error is not None:
        lines += [f"{'error':<10}{_error(status.error)}", f"{'':<10}all of it: {one_line(status.folder)}/{ERROR_FILE}"]
    if status.stacks is not None:
        lines.append(f"{'stacks':<10}{one_line(status.stacks)}, {_ago(status.stacks_s or 0.0)}")
    if status.state not in ("done", "stopped"):  # they ended in order, whatever they waited for
        is_over = status.state in ("failed", "dead")
        lines += ["", "processes, and their longest waits" + (" when they ended" if is_over else "")]
        if not status.processes:
            lines.append("  none is known yet: a process is shown some seconds after it has started")
        for process in status.processes:
            lines += _process_lines(process, is_over)
    if status.findings:
        lines += ["", "findings (`burnish doctor` with this folder has all of them)", *map(_finding, status.findings)]
    if status.events:
        lines += ["", "last events", *map(_event, status.events)]
    return "\n".join(lines)


def as_table(runs: Iterable[RunStatus]) -> str:
    """What `burnish runs` prints, and `burnish status` of several runs."""
    rows = [("run", "state", "step", "last heard of", "findings", "last values")]
    for one in runs:
        step = f"{'-' if one.step is None else one.step}" + (f"/{one.steps}" if one.steps else "")
        age = "-" if one.age_s is None else _ago(one.age_s)
        rows.append((one_line(one.folder), one.state, step, age, str(len(one.findings) or "-"), one.metric or "-"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _error(error: dict[str, Any]) -> str:
    where = f" in {one_line(error['phase'])}" if error["phase"] else ""
    after = f", after step {error['step']}" if isinstance(error.get("step"), int) else ""
    first = error["message"].strip().partition("\n")[0]
    return f"{_cut(error['type'], OWNER)}{where}{after}, {_ago(time.time() - error['time'])}: {_cut(first, MESSAGE)}"


def _in_words(status: RunStatus) -> str:
    controller = next((one for one in status.processes if one.name == CONTROLLER), None)
    who = one_line(status.held_by or (controller.where if controller else "its process"))
    ago = _ago(controller.silent_s) if controller else "at an unknown time"
    from_start = "There is no checkpoint yet: the same command starts from scratch"
    resume = "The same command resumes from the newest checkpoint" if status.has_checkpoint else from_start
    elsewhere = controller is not None and controller.host != socket.gethostname()
    clocks = ", or the clocks of the two machines differ" if elsewhere else ""
    return {
        "starting": f"starting: {who}",
        "running": f"running: {who}",
        "silent": f"{who} holds the folder but reports nothing, last {ago}: it is stopped, or its disk or machine hangs"
        + clocks,
        "done": f"done, {ago}",
        "failed": f"ended with an error, {_ago(time.time() - status.error['time']) if status.error else ago}",
        "stopped": f"stopped by the user, {ago}. {resume}",
        "dead": f"ended without a last report, {ago}: killed, or its machine is down{clocks}. {resume}",
        "unknown": "unknown: no process of it has left a status here",
    }[status.state]


def _step(status: RunStatus) -> str:
    if status.step is None:
        return "none is logged yet"
    total = f" of {status.steps}" if status.steps else ""
    return f"{status.step}{total}" + (f", logged {_ago(status.logged_s)}" if status.logged_s is not None else "")


def _process_lines(process: RunProcess, is_over: bool) -> list[str]:
    silent = f", silent for {process.silent_s:.0f} s" if process.silent_s > SILENT_S and not is_over else ""
    late = f", {process.late} late so far" if process.late else ""
    waits = ", ".join(f"{count} {one_line(kind)}" for kind, count in sorted(process.counts.items()))
    lines = [
        f"  {one_line(process.name)} ({one_line(process.where)}{silent}{late}): "
        + (f"waits: {waits}" if waits else "no waits")
    ]
    lines += [f"    {one_line(batch_in_words(batch))}" for batch in ([] if is_over else process.batches)]
    for wait in process.waits[:WAITS]:
        age = wait["age"] + (0.0 if is_over else process.silent_s)
        subject, owner = _cut(wait["subject"], SUBJECT), _cut(wait["owner"], OWNER)
        kind, limit = _cut(wait["kind"], 10), limit_in_words(wait["limit"])
        lines.append(f"    {age:8.1f} s  {kind:<10} {owner:<{OWNER}}  {subject}  ({limit})")
    left = sum(process.counts.values()) - len(process.waits[:WAITS])
    return [*lines, f"    and {left} more"] if left > 0 else lines


def _event(event: dict[str, Any]) -> str:
    when = "at some time"
    with suppress(TypeError, ValueError, OverflowError, OSError):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(event.get("time", "never"))))
    facts = ", ".join(
        f"{one_line(key)}={_cut(str(value), 60)}" for key, value in event.items() if key not in ("time", "kind")
    )
    return f"  {when}  {_cut(str(event.get('kind')), OWNER)}  {facts}"


def _finding(event: dict[str, Any]) -> str:
    said = f"{event.get('severity')} [{event.get('rule')}] {event.get('evidence')}"
    return f"  step {_cut(str(event.get('step')), 12)}: {_cut(said, FINDING)}"


def _cut(text: str, width: int) -> str:
    text = one_line(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def _ago(seconds: float | None) -> str:
    seconds = max(0.0, seconds or 0.0)
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
