"""The tool that runs programs, by the name that users' tool files have. It is burnish's `python`, on the SandboxFusion
server of the entry's `config`; without one, where `reward_model.sandbox` says."""

import dataclasses
from typing import Any

from burnish.agents.tools.python import PythonTool
from burnish.agents.tools.schema import Schema
from burnish.config.reward import FUSION, SandboxConfig


class SandboxFusionTool(PythonTool):
    """`sandbox_fusion_url`, `num_workers` (programs at a time) and `default_timeout` are read."""

    def __init__(self, config: dict[str, Any], tool_schema: Schema, *, sandbox: SandboxConfig):
        if url := config.get("sandbox_fusion_url"):
            programs, seconds = config.get("num_workers", 10), float(config.get("default_timeout", 30))
            sandbox = dataclasses.replace(sandbox, backend=FUSION, url=url, max_concurrent=programs, timeout=seconds)
        super().__init__(config, tool_schema, sandbox=sandbox)
