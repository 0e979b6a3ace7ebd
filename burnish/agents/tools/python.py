"""`python`: runs a program that the model wrote in the sandbox that `reward_model.sandbox` describes.

The model is shown what the program wrote, and how it ended if it did not end well. Each call is a new program: nothing
is kept between calls. A sandbox that cannot run programs is a ToolFailure, found before a run starts.
"""

import asyncio
from typing import Any

from burnish.agents.tools.base import Answer, BaseTool, ToolResponse
from burnish.agents.tools.schema import Schema, function_schema
from burnish.config.reward import SandboxConfig
from burnish.errors import ToolFailure
from burnish.sandbox import Program, limits_of, open_sandbox
from burnish.sandbox.local import how_to_permit

MOST_CHARACTERS = 20_000  # of each stream; cut to tokens later, which takes long for a megabyte


class PythonTool(BaseTool):
    """At most `max_concurrent` programs run at a time; the others wait for their place."""

    SCHEMA = function_schema(
        "python",
        "Runs a Python program and gives back what it prints. Every call is a new program: variables, imports and "
        "files of earlier calls are gone. There is no network.",
        {"code": {"type": "string", "description": "The whole program; print what you want to see"}},
        ["code"],
    )

    def __init__(self, config: dict[str, Any], tool_schema: Schema, *, sandbox: SandboxConfig):
        super().__init__(config, tool_schema)
        self._limits = limits_of(sandbox)
        self._sandbox = open_sandbox(sandbox)
        self.places = asyncio.Semaphore(sandbox.max_concurrent)

    async def unavailable_reason(self) -> str | None:
        """Why programs cannot be run here, with the fix, or None."""
        return await self._sandbox.unavailable_reason()

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Answer:
        outcome = await self._sandbox.run(Program(parameters["code"]), self._limits)
        if outcome.status == "failed":
            reason = how_to_permit(outcome.reason) if outcome.refused else outcome.reason
            raise ToolFailure(f"the program could not be run: {reason}")
        ends = {
            "timeout": f"[stopped: it took longer than {self._limits.seconds:g} seconds]",
            "memory": f"[stopped: it used more than {self._limits.memory_mb} MiB of memory]",
            "output": f"[stopped: it wrote more than {self._limits.output_bytes} bytes]",
            "finished": f"[ended with exit code {outcome.exit_code}]" if outcome.exit_code else "",
        }
        parts = [_cut(outcome.stdout.rstrip()), _cut(outcome.stderr.rstrip()), ends[outcome.status]]
        shown = "\n".join(part for part in parts if part) or "[the program printed nothing]"
        metrics = {"succeeded": float(outcome.succeeded), "program_seconds": outcome.seconds}
        return ToolResponse(shown), 0.0, metrics

    async def close(self) -> None:
        close = getattr(self._sandbox, "close", None)  # a server's has none
        if close is not None:
            await asyncio.to_thread(close)


def _cut(text: str) -> str:
    left_out = len(text) - MOST_CHARACTERS
    if left_out <= 0:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"
