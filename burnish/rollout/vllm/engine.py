"""The `vllm` rollout engine: a hosted one, and what is particular about vLLM."""

from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from burnish.config.rollout import RolloutConfig
from burnish.rollout.hosted.arguments import environment, token_bytes
from burnish.rollout.hosted.engine import HostedEngine
from burnish.rollout.request import RequestState
from burnish.rollout.vllm.arguments import check_sampling, engine_arguments, sampling_arguments, variables
from burnish.rollout.vllm.spec import SPEC, kv_gib


class VLLMEngine(HostedEngine):
    """While it sleeps on a GPU, the KV pool is given back and weights are in the host's memory; on a CPU requests are
    only refused."""

    name: ClassVar[str] = "vllm"
    label: ClassVar[str] = "vLLM"
    host: ClassVar[str] = "burnish.rollout.vllm.host"

    @classmethod
    def ensure_usable(cls, module: nn.Module) -> None:
        SPEC.check_installed("rollout.name=vllm", "rollout.name=")

    def _engine_arguments(self, config: RolloutConfig, folder: Path, model: Any) -> dict[str, Any]:
        self._kv_gib = kv_gib(token_bytes(model, self.dtype.itemsize), self.context, config.max_num_seqs)
        return engine_arguments(config, folder, self.context, str(self.dtype).removeprefix("torch."))

    def _process_environment(self, temporary: Path) -> dict[str, str]:
        return environment(temporary, variables(self._kv_gib), {})

    def _request_arguments(self, request: RequestState) -> dict[str, Any]:
        check_sampling(request.sampling, request.request_id)
        return sampling_arguments(request.sampling, request.stop_ids)
