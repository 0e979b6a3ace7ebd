"""`Run`: what a training run left in its folder, read when it is asked for. `burnish.Run("outputs/burnish/sums")` opens
any run, also one that is still going or was started by a command."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.api.table import Metrics, Rows
from burnish.errors import ConfigError, DataError
from burnish.models.folder import newest_checkpoint
from burnish.rewards.contract import HERE
from burnish.tracking.jsonl import METRICS_FILE, read_metrics
from burnish.tracking.plot import REWARD, plot_curve, usual_metrics
from burnish.tracking.run_folder import CONFIG_FILE, PLOT_FILE
from burnish.tracking.samples import by_score, read_samples, samples_folder

if TYPE_CHECKING:
    from burnish.api.answer import Scores


class Picture:
    """A PNG that a notebook shows."""

    def __init__(self, path: Path):
        self.path = path

    def _repr_png_(self) -> bytes:
        return self.path.read_bytes()

    def __repr__(self) -> str:
        return f"Picture({str(self.path)!r})"


class Run:
    def __init__(self, folder: str | Path, reward: Any = None):
        self.folder = Path(folder).expanduser()
        self.reward = reward  # what `evaluate` scores with, unless it is given another
        if not self.folder.is_dir():
            raise ConfigError(f"{folder}: no such run folder")

    @property
    def config(self) -> Any:
        """Every key with its value: `run.config.data.max_prompt_length`."""
        from omegaconf import OmegaConf

        file = self.folder / CONFIG_FILE
        if not file.is_file():
            raise DataError(f"{self.folder} has no {CONFIG_FILE}: no run has begun there")
        return OmegaConf.load(file)

    @property
    def metrics(self) -> Metrics:
        return Metrics(read_metrics(self.folder) if (self.folder / METRICS_FILE).is_file() else [])

    @property
    def step(self) -> int:
        """The last step that was logged."""
        return int(max(self.metrics["step"], default=0))

    @property
    def model(self) -> Path:
        """The folder of the newest checkpoint, which is a Hugging Face model."""
        folder = newest_checkpoint(self.folder)
        if folder is None:
            raise DataError(f"{self.folder} has no checkpoint; keys={{'trainer.save_freq': N}} saves one every N steps")
        return folder

    def samples(
        self, step: int | None = None, *, worst: int | None = None, best: int | None = None, validation: bool = False
    ) -> Rows:
        """The samples of a step (the newest), by score where only the worst or best are wanted."""
        return ranked(read_samples(samples_folder(self.folder, validation), step), worst, best)

    def plot(self, *metrics: str) -> Picture:
        """The curves of some metrics, each in its own panel: by default the reward and what else one watches."""
        names = metrics or usual_metrics(self.folder)
        return Picture(plot_curve(self.folder, self.folder / PLOT_FILE, metrics=names, title=self.folder.name))

    def evaluate(self, data: Any, reward: Any = None, **options: Any) -> "Scores":
        """The newest model's responses to these rows, scored as in training; `options` are those of
        `burnish.evaluate`."""
        from burnish.api.answer import evaluate

        lengths = self.config.data
        for option, key in (("prompt_length", "max_prompt_length"), ("response_length", "max_response_length")):
            if key in lengths and option not in options:
                options[option] = lengths[key]
        reward = reward or self.reward
        if reward is None:
            options.setdefault("keys", self._scored_by())
        return evaluate(model=self.model, data=data, reward=reward, **options)

    def _scored_by(self) -> dict[str, Any]:
        """The keys of the run's own reward function, or functions."""
        from omegaconf import OmegaConf

        section = "custom_reward_function"
        custom: Any = OmegaConf.to_container(self.config.get(section) or OmegaConf.create())
        functions = custom.get("functions") or {}
        if lost := [one["name"] for one in (custom, *functions.values()) if one.get("path") == HERE]:
            program = "the program that started this run"
            raise ConfigError(f"{self.folder}: its reward, {', '.join(lost)}, is of {program}; give it as reward=")
        if functions:
            return {f"{section}.functions": functions}
        names = ("path", "name", "reward_kwargs") if custom.get("path") else ()
        return {f"{section}.{name}": custom[name] for name in names}

    def __repr__(self) -> str:
        values = [value for value in self.metrics.get(REWARD, []) if not math.isnan(value)]
        reward = f", {REWARD} {values[0]:.3f} → {values[-1]:.3f}" if values else ""
        return f"Run({str(self.folder)!r}): step {self.step}{reward}"


def ranked(rows: list[dict[str, Any]], worst: int | None, best: int | None) -> Rows:
    if worst is None and best is None:
        return Rows(rows)
    return Rows(by_score(rows, best=False)[: worst or 0] + by_score(rows, best=True)[: best or 0])
