"""`burnish replay DUMP [key=value …]`: the flags; the work is `burnish/trainer/replay.py`."""

from burnish.entry.arguments import FlagParser

SUMMARY = """\
Re-run a NaN/Inf update that a run dumped: one forward and backward pass on the same rows with the same weights. Prints
the numbers of the run, those of this replay, and where they are not finite. Keys of the run can be changed; keys that
name code are read from this command line only, never from the dump. Exit code 0 if loss and gradient are finite, 1 if
not."""


def parser() -> FlagParser:
    p = FlagParser("replay", SUMMARY, "replay outputs/burnish/run/bad_steps/step_3_actor_0 trainer.device=cpu")
    p.add_argument("dump", help="a folder bad_steps/step_N_ROLE_NUMBER of a run")
    p.add_argument("keys", nargs="*", metavar="key=value", help="keys of the run to change")
    return p


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    from burnish.trainer.replay import replay
    from burnish.trainer.replay_report import report

    outcome = replay(options.dump, options.keys)
    print(report(outcome))
    return 0 if outcome.is_finite else 1
