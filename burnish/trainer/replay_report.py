"""A `Replay` as text: the metrics in the run and now, then where they are not finite."""

import math

from burnish.trainer.replay import BadRow, Replay

SHOWN = 10  # rows, and names of parameters


def report(replay: Replay) -> str:
    """The text that `burnish replay` prints."""
    dump, update = replay.dump, replay.dump.update
    heading = [
        f"step {update.step}, optimiser step {update.number} of {update.role} (burnish {dump.command})",
        f"{replay.computed} rows computed of the {len(dump.batch)} in the mini-batch, on {replay.device.type}",
    ]
    return "\n".join([*heading, "", *_metrics(replay), "", *_verdict(replay)])


def _metrics(replay: Replay) -> list[str]:
    """A line for each metric that an update without its optimiser step has; values in full, so that every bit shows."""
    seen, now = replay.dump.update.metrics, replay.metrics
    names = ["loss", "grad_norm", *(name for name in now if name not in ("loss", "grad_norm"))]
    cells = [(name, repr(seen[name]) if name in seen else "-", repr(now[name])) for name in names]
    table = [("", "in the run", "now"), *cells]
    first, second = (max(len(row[i]) for row in table) for i in (0, 1))
    lines = [f"{name:<{first}}  {then:<{second}}  {value}" for name, then, value in table]
    return [
        line if row[1] == row[2] or row[0] == "" else f"{line}  (differs)"
        for line, row in zip(lines, table, strict=True)
    ]


def _verdict(replay: Replay) -> list[str]:
    lines = ["loss and gradient are finite" if replay.is_finite else "loss or gradient is NaN or infinite"]
    if not replay.is_finite:
        lines.append(f"rows with NaN or infinity when run alone: {len(replay.rows)} of {replay.computed}")
        lines += [f"  {_row(row)}" for row in replay.rows[:SHOWN]]
        lines += ["  …"] if len(replay.rows) > SHOWN else []
        lines.append(f"first module with such an output: {replay.module or 'none when the model is run alone'}")
    lines.append(f"weights that are not finite: {_named(replay.weights)}")
    lines.append(f"gradients that are not finite: {_named(replay.gradients)} (of {replay.parameters})")
    if not replay.gradients and math.isinf(replay.metrics["grad_norm"]):
        lines.append("  (every gradient is finite; their norm is more than float32 holds)")
    lines.append("largest finite values:")
    lines += [
        f"  {name} {value!r} (row {place.row}, token {place.token})" for name, (value, place) in replay.largest.items()
    ]
    return lines


def _row(row: BadRow) -> str:
    who = f"row {row.number}" + ("" if row.uid is None else f", uid {row.uid!r}")
    tokens = f"{row.prompt} + {row.response} tokens" if row.response else f"{row.prompt} tokens"
    where = "the values of its tokens are finite, their sum is not"
    if row.token is not None:
        where = f"first at token {row.token}: " + ", ".join(f"{name} {value!r}" for name, value in row.values.items())
    return f"{who}: {tokens}, loss {row.loss!r}; {where}"


def _named(names: list[str]) -> str:
    return f"{len(names)}" + (f": {', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''}" if names else "")
