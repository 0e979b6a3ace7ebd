"""The mlflow logger (the extra `mlflow`): project_name is the experiment, experiment_name the run.

Where it logs to is MLflow's own setting (`MLFLOW_TRACKING_URI`). MLflow allows no `@` in a metric's name:
`mean@4` is logged as `mean_at_4`.
"""

from collections.abc import Mapping
from typing import Any

from burnish.tracking.base import Backend, RunFacts
from burnish.tracking.disk import plain, write_atomically

ID_FILE = "mlflow_run_id.txt"


class MlflowBackend(Backend):
    def __init__(self, facts: RunFacts):
        super().__init__(facts)
        self._mlflow: Any = None
        self._resumed = False

    def resume(self, step: int) -> None:
        self._resumed = True

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._mlflow is None:
            self._mlflow = self._start()
        self._mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in metrics.items()}, step=step)

    def _start(self) -> Any:
        import mlflow

        remembered = self.facts.folder / ID_FILE
        run_id = remembered.read_text().strip() if self._resumed and remembered.is_file() else None
        mlflow.set_experiment(self.facts.project)
        run = mlflow.start_run(run_id=run_id, run_name=self.facts.experiment)
        write_atomically(remembered, [run.info.run_id])
        if run_id is None and self.facts.config:
            mlflow.log_dict(plain(self.facts.config), "config.yaml")
        return mlflow

    def close(self, failed: bool = False) -> None:
        if self._mlflow is not None:
            self._mlflow.end_run(status="FAILED" if failed else "FINISHED")
            self._mlflow = None
