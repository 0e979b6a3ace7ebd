"""`burnish show RUN`, `burnish plot RUN…`, `burnish compare A B…`, `burnish tensorboard RUN` and
`burnish trace RUN`: the flags of `tracking/samples.py`, `plot.py`, `compare.py`, `tensorboard.py` and `trace.py`."""

import re
from itertools import islice
from pathlib import Path

from burnish.entry.arguments import FlagParser, positive
from burnish.errors import ConfigError, DataError
from burnish.literal import json_text, one_line, print_text

TAG = re.compile(r"</?\w{1,30}>|<\|[\w-]{1,30}\|>")  # of tool calls, documents and turns: shown in another colour
RUN = "the run folder (trainer.default_local_dir)"


def show_parser() -> FlagParser:
    p = FlagParser(
        "show",
        "Print samples of a run in readable form: prompt, response cut into the policy's own turns and what is masked, "
        "score, reward parts, advantage.",
        "show outputs/burnish/run --step 10 --worst",
    )
    p.add_argument("run", metavar="RUN", help=RUN)
    p.add_argument("--step", type=int, metavar="N", help="samples of this step [the newest that was written]")
    order = p.add_mutually_exclusive_group()
    order.add_argument("--worst", action="store_true", help="lowest scores first")
    order.add_argument("--best", action="store_true", help="highest scores first")
    p.add_argument("--prompt", metavar="TEXT", help="samples whose prompt has this text; of all steps without --step")
    p.add_argument("--validation", action="store_true", help="samples of validation, not of training")
    p.add_argument("--count", type=positive, default=3, metavar="N", help="samples at most [3]")
    p.add_argument("--json", action="store_true", help="print them as JSON lines, for programs")
    return p


def show(argv: list[str]) -> int:
    options = show_parser().parse_args(argv)
    from burnish.tracking.samples import by_score, read_samples, samples_folder, with_prompt

    run = Path(options.run).expanduser()
    if not run.is_dir():
        raise ConfigError(f"{options.run}: there is no such folder. Name {RUN}")
    folder = samples_folder(run, options.validation)
    if options.prompt is None:
        found = read_samples(folder, options.step)
    else:
        matches = with_prompt(folder, options.prompt, options.step)
        found = list(matches if options.worst or options.best else islice(matches, options.count))
        if not found:
            raise DataError(f"--prompt {options.prompt}: no prompt in {folder} has this text")
    if options.worst or options.best:
        found = by_score(found, best=options.best)
    found = found[: options.count]
    if options.json:
        for row in found:
            print_text(json_text(row))
        return 0
    from rich.console import Console
    from rich.text import Text

    from burnish.data.show import print_blocks
    from burnish.data.show_sample import sample_blocks, sample_heading

    console = Console()
    for row in found:
        console.print(Text(one_line(sample_heading(row)), style="bold reverse"), soft_wrap=True)
        print_blocks(console, sample_blocks(row), sorted(set(TAG.findall(str(row.get("response"))))))
        console.print()
    return 0


def plot_parser() -> FlagParser:
    p = FlagParser(
        "plot",
        "Draw the curves of runs as a PNG: one panel per metric, one line per run.",
        "plot outputs/burnish/run --metric critic/score/mean --metric response_length/mean",
    )
    p.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    p.add_argument("--metric", action="append", metavar="NAME", help="may be repeated [what one watches]")
    p.add_argument("--out", metavar="FILE.png", help="[plot.png in the run folder; of several runs: here]")
    return p


def plot(argv: list[str]) -> int:
    options = plot_parser().parse_args(argv)
    out = options.out or (Path(options.runs[0]) / "plot.png" if len(options.runs) == 1 else "plot.png")
    print_text(draw(options.runs, out, options.metric))
    return 0


def draw(runs: list[str], out: str | Path, metrics: list[str] | None) -> Path:
    from burnish.tracking.plot import plot_curve, usual_metrics

    folders = {run: with_metrics(run) for run in runs}
    names = metrics or usual_metrics(*folders.values())
    title = folders[runs[0]].absolute().name if len(runs) == 1 else f"{len(runs)} runs"
    return plot_curve(folders if len(folders) > 1 else folders[runs[0]], out, title=title, metrics=names)


def compare_parser() -> FlagParser:
    p = FlagParser(
        "compare",
        "What differs between runs: their keys, and their final values with the spread over seeds and whether the "
        "difference is significant (Welch's t-test, p < 0.05). Runs that differ in seeds and names only are one group; "
        "a folder with several runs stands for all of them.",
        "compare outputs/burnish/grpo outputs/burnish/rloo",
    )
    p.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or folders with several")
    p.add_argument("--metric", action="append", metavar="NAME", help="may be repeated [what one watches]")
    p.add_argument("--out", metavar="FILE.png", help="draw the curves into this file too")
    return p


def compare(argv: list[str]) -> int:
    options = compare_parser().parse_args(argv)
    from burnish.tracking.compare import as_text, read_groups
    from burnish.tracking.plot import usual_metrics

    groups = read_groups(options.runs)
    folders = [folder for group in groups for folder in group.folders]
    if len(folders) < 2:
        raise ConfigError("burnish compare needs two runs or more, or a folder that holds several")
    print_text(as_text(groups, options.metric or usual_metrics(*(Path(one).expanduser() for one in folders))))
    if options.out:
        print_text(f"\ncurves: {draw(folders, options.out, options.metric)}")
    return 0


def tensorboard_parser() -> FlagParser:
    p = FlagParser(
        "tensorboard",
        "Write the metrics of a run, and a few samples of each step, as event files of TensorBoard: for a run whose "
        "trainer.logger did not name it.",
        "tensorboard outputs/burnish/run",
    )
    p.add_argument("run", metavar="RUN", help=RUN)
    p.add_argument("--out", metavar="FOLDER", help="where its folder tensorboard/ is made [the run folder]")
    return p


def tensorboard(argv: list[str]) -> int:
    options = tensorboard_parser().parse_args(argv)
    from burnish.tracking.tensorboard import write_events

    run = with_metrics(options.run)
    out = Path(options.out).expanduser() if options.out else run
    write_events(run, out)
    print_text(f"look at them with: tensorboard --logdir {out}")
    return 0


def trace_parser() -> FlagParser:
    p = FlagParser(
        "trace",
        "Write what every process of a run did when as one Chrome trace: phases of the steps, calls of the workers, "
        "and waits of profiled steps. https://ui.perfetto.dev and chrome://tracing open it.",
        "trace outputs/burnish/run --step 10",
    )
    p.add_argument("run", metavar="RUN", help=RUN)
    p.add_argument("--step", type=int, metavar="N", help="this step only [all that the run did]")
    p.add_argument("--out", metavar="FILE.json", help="[trace.json in the run folder]")
    return p


def trace(argv: list[str]) -> int:
    options = trace_parser().parse_args(argv)
    from burnish.tracking.disk import write_atomically
    from burnish.tracking.trace import chrome_trace, read_trace

    run = Path(options.run).expanduser()
    out = Path(options.out).expanduser() if options.out else run / "trace.json"
    write_atomically(out, [json_text(chrome_trace(read_trace(run, options.step)))])
    print_text(f"{out}: open it in https://ui.perfetto.dev or chrome://tracing")
    return 0


def with_metrics(run: str) -> Path:
    from burnish.tracking.jsonl import METRICS_FILE

    folder = Path(run).expanduser()
    if not (folder / METRICS_FILE).is_file():
        raise ConfigError(f"{run}: there is no {METRICS_FILE}. Name {RUN}")
    return folder
