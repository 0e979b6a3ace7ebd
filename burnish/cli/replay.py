"""`burnish replay DUMP [key=value …]`: the arguments, and what is printed. The work is `burnish/trainer/replay.py`."""

from burnish.cli.arguments import Parser

SUMMARY = """\
Run an update again that was NaN or infinite and that its run dumped: forward and backward once, on the same rows, with
the same weights. Prints what the run saw, what comes out now, and where it is not finite. Keys of the run can be set
otherwise; those that name code are taken from here alone, never from the dump. The exit code is 0 where loss and
gradient are finite, 1 where they are not."""


def parser() -> Parser:
    p = Parser("replay", SUMMARY, "replay outputs/burnish/run/bad_steps/step_3_actor_0 trainer.device=cpu")
    p.add_argument("dump", help="a folder bad_steps/step_N_ROLE_NUMBER of a run")
    p.add_argument("keys", nargs="*", metavar="key=value", help="keys of the run to be set otherwise")
    return p


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    from burnish.trainer.replay import replay
    from burnish.trainer.replay_report import report

    outcome = replay(options.dump, options.keys)
    print(report(outcome))
    return 0 if outcome.is_finite else 1
