"""The trackio logger (the extra `trackio`): project and run have the names of the keys. They are on this machine, or in
the Hugging Face Space that TRACKIO_SPACE_ID names. If the name of a run is taken, trackio makes another one."""

import os
from collections.abc import Mapping
from typing import Any

from burnish.tracking.base import RememberedBackend
from burnish.tracking.disk import plain


class TrackioBackend(RememberedBackend):
    id_file = "trackio_run.txt"
    remedy = "Log in with `hf auth login`, or unset TRACKIO_SPACE_ID to log on this machine"

    def check(self) -> None:
        import trackio  # noqa: F401

        if os.environ.get("TRACKIO_SPACE_ID"):
            from huggingface_hub import whoami

            whoami()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self._run is None:
            self._run = self._start()
        self._run.log(dict(metrics), step=step)

    def _start(self) -> Any:
        import trackio

        earlier = self.remembered()
        run = trackio.init(
            project=self.facts.project,
            name=earlier or self.facts.experiment,
            config=plain(self.facts.config),
            resume="allow" if earlier else "never",
        )
        self.remember(run.name)
        return run

    def close(self, failed: bool = False) -> None:
        if self._run is not None:
            self._run.finish()
            self._run = None
