"""`burnish status RUN`, `burnish runs`, `burnish doctor RUN` and `burnish replay DUMP`: the flags of
`tracking/run_status.py`, `tracking/run_health.py` and `trainer/replay.py`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.entry.arguments import FlagParser
from burnish.errors import ConfigError
from burnish.literal import json_text, print_text

if TYPE_CHECKING:
    from burnish.tracking.run_status import RunStatus

STATUS = """\
What a run is doing: whether it is alive, its step, what each of its processes is waiting for (longest first, with owner
and limit), its last events, and the newest file with the stacks of all threads. Reads the run folder only, so it works
from any machine that sees the folder, and for runs that have ended. Of a folder with several runs, and without one of
outputs/, it lists the runs, as `burnish runs` does."""
RUNS = "outputs"  # where run folders are by default


def status_parser() -> FlagParser:
    p = FlagParser("status", STATUS, "status outputs/burnish/run")
    p.add_argument("run", nargs="?", metavar="RUN", help="a run folder, or a folder with several [outputs]")
    p.add_argument("--json", action="store_true", help="print JSON, for programs")
    return p


def status(argv: list[str]) -> int:
    options = status_parser().parse_args(argv)
    from burnish.tracking.run_status import as_text, find_runs, is_run, read_status

    place = options.run or RUNS
    if found := [] if is_run(Path(place).expanduser()) else find_runs(place):
        print_runs(found, options.json)
        return 0
    status = read_status(place)
    print_text(json_text(asdict(status), indent=2) if options.json else as_text(status))
    return 0


def runs_parser() -> FlagParser:
    p = FlagParser(
        "runs",
        "The runs below a folder, the one last heard of first: state, step, findings and last values.",
        "runs outputs",
    )
    p.add_argument("folder", nargs="?", default=RUNS, metavar="FOLDER", help="a folder with runs [outputs]")
    p.add_argument("--json", action="store_true", help="print JSON, for programs")
    return p


def runs(argv: list[str]) -> int:
    options = runs_parser().parse_args(argv)
    from burnish.tracking.run_status import find_runs

    if not (found := find_runs(options.folder)):
        raise ConfigError(f"{options.folder}: there is no run in this folder, or up to three folders below it")
    print_runs(found, options.json)
    return 0


def print_runs(found: "list[RunStatus]", as_json: bool) -> None:
    from burnish.tracking.run_status import as_table

    print_text(json_text([asdict(run) for run in found], indent=2) if as_json else as_table(found))


DOCTOR = """\
What is wrong with a run, by rules over its metrics: whether it learned, each finding with its evidence, and what to
change. Reads the run folder only, of a run that runs, has ended, or was made on another machine. Exit code 0, or 1 if
a finding says that the run is broken. Without a run: what this machine has and lacks (Python, torch, GPUs, memory,
packages, ports, sandbox), with exit code 1 if something keeps it from training."""


def doctor_parser() -> FlagParser:
    p = FlagParser("doctor", DOCTOR, "doctor outputs/burnish/run")
    p.add_argument("run", nargs="?", metavar="RUN", help="the run folder (trainer.default_local_dir) [this machine]")
    p.add_argument("--json", action="store_true", help="print JSON, for programs")
    return p


def doctor(argv: list[str]) -> int:
    options = doctor_parser().parse_args(argv)
    if options.run is None:
        from burnish.cli import machine

        facts = machine.machine_facts()
        shown = json_text([fact._asdict() for fact in facts], indent=2) if options.json else machine.as_text(facts)
        print_text(shown)
        return 1 if any(fact.state == machine.PROBLEM for fact in facts) else 0
    from burnish.tracking.run_health import read_health

    health = read_health(options.run)
    if options.json:
        found = [asdict(one) for one in health.current()]
        print_text(json_text({"verdict": health.verdict().partition("\n")[0], "findings": found}, indent=2))
    else:
        print_text(health.verdict())
    return 1 if health.broken() else 0


REPLAY = """\
Re-run a NaN/Inf update that a run dumped: one forward and backward pass on the same rows with the same weights. Prints
the numbers of the run, those of this replay, and where they are not finite. Keys of the run can be changed; keys that
name code are read from this command line only, never from the dump. Exit code 0 if loss and gradient are finite, 1 if
not."""


def replay_parser() -> FlagParser:
    p = FlagParser("replay", REPLAY, "replay outputs/burnish/run/bad_steps/step_3_actor_0 trainer.device=cpu")
    p.add_argument("dump", help="a folder bad_steps/step_N_ROLE_NUMBER of a run")
    p.add_argument("keys", nargs="*", metavar="key=value", help="keys of the run to change")
    return p


def replay(argv: list[str]) -> int:
    options = replay_parser().parse_args(argv)
    from burnish.trainer.replay import replay, report

    outcome = replay(options.dump, options.keys)
    print_text(report(outcome))
    return 0 if outcome.is_finite else 1
