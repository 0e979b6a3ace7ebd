"""`python3 -m burnish.trainer.main_eval key=value …`, in short `burnish eval`: scores of a file of responses.

`--fail-under X` is a flag of this command alone, so it is taken out here, before the keys are read.
"""

if __name__ == "__main__":
    from burnish.entry import ending

    ending.begin(__name__)


import math
from contextlib import suppress

from burnish.config import EVAL, EvalConfig, Loaded, run
from burnish.config.finalise import finalise_eval
from burnish.entry.ending import importing
from burnish.entry.keys import run_program
from burnish.errors import ConfigError

FAIL_UNDER = "--fail-under"


def main(argv: list[str]) -> int:
    words, threshold = take_threshold(argv)

    def evaluate_job(loaded: Loaded[EvalConfig]) -> int:
        if loaded.flags.plan:
            raise ConfigError("--plan is for commands that train; burnish eval has nothing to plan for")
        with importing():
            from burnish.trainer.evaluation import evaluate  # numpy only once the keys are known to be right
        return evaluate(loaded, threshold)

    return run(words, EVAL, finalise_eval, evaluate_job)


def take_threshold(argv: list[str]) -> tuple[list[str], float | None]:
    """The command line without `--fail-under X` or `--fail-under=X`, and X."""
    rest, words = list[str](), iter(argv)
    threshold: float | None = None
    for word in words:
        name, equals, text = word.partition("=")
        if name != FAIL_UNDER:
            rest.append(word)
            continue
        text = text if equals else next(words, "")
        threshold = math.nan
        with suppress(ValueError):
            threshold = float(text)
        if not math.isfinite(threshold):
            raise ConfigError(f"{FAIL_UNDER} {text}".rstrip() + f": must be a number, for example {FAIL_UNDER} 0.5")
    return rest, threshold


if __name__ == "__main__":
    run_program("eval", main)
