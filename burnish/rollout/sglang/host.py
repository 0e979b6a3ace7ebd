"""The process that has SGLang's Engine in it: `python -m burnish.rollout.sglang.host`.

SGLang ends this process where one of those that compute dies, which is how the owner hears of it.
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from burnish.rollout.hosted.host import EngineHost, run
from burnish.rollout.hosted.process import HostedRequest


class SGLangHost(EngineHost):
    async def begin(self, arguments: dict[str, Any]) -> list[int]:
        from sglang.srt.entrypoints.engine import Engine

        from burnish.rollout.sglang.worker import run_worker

        class WorkersEngine(Engine):
            run_scheduler_process_func = staticmethod(run_worker)

        self._engine = WorkersEngine(**arguments)
        self._manager = self._engine.tokenizer_manager
        self._manager.auto_create_handle_loop()
        self._calling = asyncio.Lock()
        self._workers = arguments["tp_size"]
        return [int(answer["pid"]) for answer in await self._ask_workers("burnish_prepare")]

    async def _ask_workers(self, method: str, **arguments: Any) -> list[dict[str, Any]]:
        """What each worker says. SGLang hands back no answers, so these come as files."""
        async with self._calling:
            folder = Path(tempfile.mkdtemp())
            try:
                parameters = {**arguments, "answers": str(folder)}
                await asyncio.to_thread(self._engine.collective_rpc, method, **parameters)
                return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(self._workers)]
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    async def sign_of_life(self) -> None:
        await self._ask_workers("burnish_alive")

    async def tokens(
        self, name: str, ask: HostedRequest, done: list[int]
    ) -> AsyncIterator[tuple[list[int], list[float], str | None]]:
        parameters = {**ask.sampling, "max_new_tokens": ask.limit - len(done)}
        answers = await self._engine.async_generate(
            input_ids=[*ask.prompt_ids, *done], sampling_params=parameters, return_logprob=True, stream=True, rid=name
        )
        seen = 0
        async for answer in answers:
            facts = answer["meta_info"]
            end = facts["finish_reason"]
            if end is not None and end["type"] == "abort" and end.get("status_code") is not None:
                raise RuntimeError(end.get("message") or "the request was refused")
            # Those at the end are new: of one that waits for memory, SGLang's last answer has all its tokens once more.
            rows = facts.get("output_token_logprobs") or []
            rows = rows[max(len(rows) - (facts["completion_tokens"] - seen), 0) :]
            seen += len(rows)
            yield [int(row[1]) for row in rows], [float(row[0]) for row in rows], end and end["type"]

    async def end_parts(self, names: list[str]) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        for name in names:  # not by `abort_request`, which tells it once
            self._manager._dispatch_to_scheduler(AbortReq(rid=name))

    async def load(self, files: list[str]) -> list[dict[str, Any]]:
        said = await self._ask_workers("burnish_load", files=files)
        for rank, answer in enumerate(said):
            if problem := answer.get("problem"):
                raise RuntimeError(f"worker {rank} could not load the weights: {problem}")
        return said

    async def forget(self) -> bool:
        return bool((await self._manager.flush_cache()).success)

    async def do_log_probs_of(self, token_ids: list[int]) -> list[float]:
        answer = await self._engine.async_generate(
            input_ids=token_ids,
            sampling_params={"temperature": 0, "max_new_tokens": 1},
            return_logprob=True,
            logprob_start_len=0,
        )
        return [float(row[0]) for row in answer["meta_info"]["input_token_logprobs"][1:]]

    async def end(self) -> None:
        await asyncio.to_thread(self._engine.shutdown)


if __name__ == "__main__":
    run(SGLangHost)
