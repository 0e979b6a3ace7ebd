"""The health of a run that has ended, or that runs elsewhere: the rules over the metrics in its folder."""

from functools import partial
from pathlib import Path

from burnish.errors import ConfigError
from burnish.health.watch import Health
from burnish.tracking.jsonl import METRICS_FILE, newest_samples, read_lines, read_metrics
from burnish.tracking.run_folder import CONFIG_FILE, read_config


def read_health(folder: str | Path) -> Health:
    """ConfigError where there are no metrics."""
    path = Path(folder).expanduser()
    if not (path / METRICS_FILE).is_file():
        fix = f"`burnish status {folder}` shows why" if (path / CONFIG_FILE).is_file() else "give the folder of a run"
        raise ConfigError(f"{folder}: no step is logged ({METRICS_FILE}); {fix}")
    health = Health(read_config(path), samples=partial(newest_samples, path / "rollouts"))
    events = read_lines(path / "events.jsonl") if (path / "events.jsonl").is_file() else []
    best = {event.get("step"): event.get("best") for event in events if event.get("kind") == "checkpoint"}
    for metrics in read_metrics(path):
        step = int(metrics["step"])
        health.observe(metrics, step)
        health.history.best = best.get(step, health.history.best)
    return health
