"""`burnish status RUN`: the flags; the work is `burnish/tracking/run_status.py`."""

from burnish.entry.arguments import FlagParser

SUMMARY = """\
What a run is doing: whether it is alive, its step, what each of its processes is waiting for (longest first, with owner
and limit), its last events, and the newest file with the stacks of all threads. Reads the run folder only, so it works
from any machine that sees the folder, and for runs that have ended."""


def parser() -> FlagParser:
    p = FlagParser("status", SUMMARY, "status outputs/burnish/run")
    p.add_argument("run", metavar="RUN", help="the run folder (trainer.default_local_dir)")
    p.add_argument("--json", action="store_true", help="print JSON, for programs")
    return p


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    from burnish.tracking.run_status import as_text, read_status

    status = read_status(options.run)
    print(status.as_json() if options.json else as_text(status))
    return 0
