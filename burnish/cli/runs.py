"""`burnish status RUN`, `burnish doctor RUN` and `burnish replay DUMP`: the flags of `tracking/run_status.py`,
`tracking/run_health.py` and `trainer/replay.py`."""

from dataclasses import asdict
from pathlib import Path

from burnish.entry.arguments import FlagParser
from burnish.literal import json_text, print_text

STATUS = """\
What a run is doing: whether it is alive, its step, what each of its processes is waiting for (longest first, with owner
and limit), its last events, and the newest file with the stacks of all threads. Reads the run folder only, so it works
from any machine that sees the folder, and for runs that have ended. Of a folder with several runs, and without one of
outputs/, it lists the runs: name, state, step, when each was last heard of, and its last metric."""
RUNS = "outputs"  # where run folders are by default


def status_parser() -> FlagParser:
    p = FlagParser("status", STATUS, "status outputs/burnish/run")
    p.add_argument("run", nargs="?", metavar="RUN", help="a run folder, or a folder with several [outputs]")
    p.add_argument("--json", action="store_true", help="print JSON, for programs")
    return p


def status(argv: list[str]) -> int:
    options = status_parser().parse_args(argv)
    from burnish.tracking.run_status import as_table, as_text, find_runs, is_run, read_status

    place = options.run or RUNS
    runs = [] if is_run(Path(place).expanduser()) else find_runs(place)
    if runs:
        print_text(json_text([asdict(run) for run in runs], indent=2) if options.json else as_table(runs))
        return 0
    status = read_status(place)
    print_text(json_text(asdict(status), indent=2) if options.json else as_text(status))
    return 0


DOCTOR = """\
What is wrong with a run, by rules over its metrics: whether it learned, each finding with its evidence, and what to
change. Reads the run folder only, of a run that runs, has ended, or was made on another machine. Exit code 0, or 1 if
a finding says that the run is broken."""


def doctor_parser() -> FlagParser:
    p = FlagParser("doctor", DOCTOR, "doctor outputs/burnish/run")
    p.add_argument("run", metavar="RUN", help="the run folder (trainer.default_local_dir)")
    return p


def doctor(argv: list[str]) -> int:
    options = doctor_parser().parse_args(argv)
    from burnish.tracking.run_health import read_health

    health = read_health(options.run)
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
