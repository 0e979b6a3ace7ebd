"""The mlflow logger (the extra `mlflow`): project_name is the experiment, experiment_name the run. MLflow allows few
characters in a metric's name: `mean@4` is logged as `mean_at_4`, and others, as a data source may have, as `_`."""

import os
import re
from collections.abc import Mapping
from typing import Any

from burnish.tracking.base import RememberedBackend
from burnish.tracking.disk import plain

# For the first call: by itself mlflow tries for minutes.
SHORT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class MlflowBackend(RememberedBackend):
    id_file = "mlflow_run_id.txt"
    remedy = "Name a tracking server that answers in MLFLOW_TRACKING_URI"

    def check(self) -> None:
        import mlflow

        added = {name: value for name, value in SHORT.items() if name not in os.environ}
        os.environ.update(added)
        try:
            mlflow.get_experiment_by_name(self.facts.project)
        finally:
            for name in added:
                del os.environ[name]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._run is None:
            self._run = self._start()
        self._run.log_metrics({allowed(name): value for name, value in metrics.items()}, step=step)

    def _start(self) -> Any:
        import mlflow

        run_id = self.remembered()
        mlflow.set_experiment(self.facts.project)
        run = mlflow.start_run(run_id=run_id, run_name=self.facts.experiment)
        self.remember(run.info.run_id)
        if run_id is None and self.facts.config:
            mlflow.log_dict(plain(self.facts.config), "config.yaml")
        return mlflow

    def close(self, failed: bool = False) -> None:
        if self._run is not None:
            self._run.end_run(status="FAILED" if failed else "FINISHED")
            self._run = None


def allowed(name: str) -> str:
    """The name as MLflow takes it: no other characters, and no empty part or dots alone between slashes."""
    parts = re.sub(r"[^\w.\- /]", "_", name.replace("@", "_at_")).split("/")
    return "/".join(part if part.strip(".") else "_" for part in parts)
