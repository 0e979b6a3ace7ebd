"""The wandb logger (the extra `wandb`): one wandb run per run folder, continued when the run is resumed."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from burnish.errors import ConfigError
from burnish.tracking.base import SAMPLE, RememberedBackend

OFFLINE = ("offline", "dryrun", "disabled")  # modes without a server


class WandbBackend(RememberedBackend):
    id_file = "wandb_run_id.txt"
    remedy = "Log in with `wandb login`, or set WANDB_MODE=offline to log on this machine"

    def check(self) -> None:
        import wandb

        if wandb.setup().settings.mode in OFFLINE:
            return
        never_ask = {"prompt": False} if "prompt" in signature(wandb.login).parameters else {}
        if not wandb.login(verify=True, **never_ask):
            raise ConfigError("there is no API key of wandb")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._run is None:
            self._run = self._start()
        # Not `step=`: wandb drops a step that is not past the last one, and a resumed run repeats some.
        self._run.log({**metrics, "step": step})

    def log_samples(self, samples: Sequence[Mapping[str, Any]], step: int) -> None:
        import wandb

        if self._run is None:
            self._run = self._start()
        table = wandb.Table(columns=list(SAMPLE), data=[[sample[name] for name in SAMPLE] for sample in samples])
        self._run.log({"samples": table, "step": step})

    def _start(self) -> Any:
        import wandb

        run_id = self.remembered()
        run = wandb.init(
            project=self.facts.project,
            name=self.facts.experiment,
            dir=str(self.facts.folder),
            config=dict(self.facts.config),
            id=run_id,
            resume="allow" if run_id else None,
        )
        self.remember(run.id)
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run

    def close(self, failed: bool = False) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1 if failed else 0)
            self._run = None
