"""What a run leaves behind and what it shows while it runs.

| module | for |
|---|---|
| `tracker.py` | `Tracker`: metrics and events to every logger of `trainer.logger` |
| `run_folder.py` | `RunFolder`: configuration and samples on disk (with `background.py`, `disk.py`, `lock.py`) |
| `console.py`, `jsonl.py`, `tensorboard.py`, `wandb.py`, `mlflow.py`, `trackio.py` | one logger each |
| `transcript.py`, `failure.py` | `console.log` and `error.json` |
| `timer.py`, `plot.py`, `logs.py` | step timing, the learning curve as PNG, Python logging |
| `watchdog.py`, `stacks.py`, `run_status.py` | what a process waits for, waits that are late, `burnish status` |
| `progress.py` | progress of counted work |

Importing any of these imports neither torch nor an optional logger.
"""

from burnish.tracking.run_folder import RunFolder
from burnish.tracking.timer import timed
from burnish.tracking.tracker import Tracker

__all__ = ["RunFolder", "Tracker", "timed"]
