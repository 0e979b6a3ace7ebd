"""The `sglang` rollout engine: a hosted engine whose program is SGLang."""

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from burnish.config.rollout import RolloutConfig
from burnish.rollout.hosted.arguments import environment
from burnish.rollout.hosted.engine import HostedEngine
from burnish.rollout.request import RequestState
from burnish.rollout.sglang.arguments import VARIABLES, engine_arguments, request_arguments
from burnish.rollout.sglang.spec import SPEC


class SGLangEngine(HostedEngine):
    name: ClassVar[str] = "sglang"
    label: ClassVar[str] = "SGLang"
    host: ClassVar[str] = "burnish.rollout.sglang.host"

    @classmethod
    def ensure_usable(cls, module: nn.Module) -> None:
        SPEC.check_installed("rollout.name=sglang", "rollout.name=")
        gpus = int(next(module.parameters()).device.type != "cpu")
        SPEC.check_devices(RolloutConfig(name=cls.name), "rollout", gpus, "rollout.name=")

    def _engine_arguments(self, config: RolloutConfig, folder: Path, model: Any) -> dict[str, Any]:
        return engine_arguments(config, folder, self.context, str(self.dtype).removeprefix("torch."), model)

    def _process_environment(self, temporary: Path) -> dict[str, str]:
        return environment(temporary, {}, VARIABLES)

    def _request_arguments(self, request: RequestState) -> dict[str, Any]:
        return request_arguments(request)
