"""The process that has vLLM's AsyncLLM in it: `python -m burnish.rollout.vllm.host` (`rollout/hosted`)."""

from collections.abc import AsyncIterator
from typing import Any

from burnish.errors import ConfigError
from burnish.rollout.base import request_seed
from burnish.rollout.hosted.host import EngineHost, run
from burnish.rollout.hosted.process import HostedRequest


class VLLMHost(EngineHost):
    """vLLM is imported when it is started: each process that vLLM starts imports this module once more."""

    async def begin(self, arguments: dict[str, Any]) -> list[int]:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM
        from vllm.v1.engine.exceptions import EngineDeadError

        self.dead = (EngineDeadError,)  # type: ignore[misc]
        self._frees = arguments["enable_sleep_mode"] and current_platform.is_sleep_mode_available()
        arguments["enable_sleep_mode"] = self._frees
        if current_platform.is_cpu():
            arguments["enforce_eager"] = True  # there are no CUDA graphs, and to compile takes minutes
        try:
            settings = AsyncEngineArgs(**arguments).create_engine_config()
        except (ValueError, TypeError, NotImplementedError) as error:
            raise ConfigError(f"vLLM refuses the model or an argument: {error}") from error
        if current_platform.is_cpu():
            _check_heads(settings.model_config.get_head_size())
        self._engine = AsyncLLM.from_vllm_config(settings, disable_log_stats=True)
        return list(await self._engine.collective_rpc("burnish_prepare"))

    async def sign_of_life(self) -> None:
        await self._engine.collective_rpc("burnish_alive")

    async def tokens(
        self, name: str, ask: HostedRequest, done: list[int]
    ) -> AsyncIterator[tuple[list[int], list[float], str | None]]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            **ask.sampling,
            seed=part_seed(ask.seed, len(done)),
            max_tokens=ask.limit - len(done),
            output_kind=RequestOutputKind.DELTA if ask.streams else RequestOutputKind.FINAL_ONLY,
        )
        async for output in self._engine.generate(_prompt([*ask.prompt_ids, *done]), parameters, name):
            piece = output.outputs[0]
            token_ids = list(piece.token_ids)
            log_probs = [row[i].logprob for row, i in zip(piece.logprobs or [], token_ids, strict=True)]
            yield token_ids, log_probs, piece.finish_reason

    async def end_parts(self, names: list[str]) -> None:
        await self._engine.abort(names)

    async def load(self, files: list[str]) -> list[dict[str, Any]]:
        return list(await self._engine.collective_rpc("burnish_load", args=(files,)))

    async def forget(self) -> bool:
        return bool(await self._engine.reset_prefix_cache(reset_connector=True))

    async def do_log_probs_of(self, token_ids: list[int]) -> list[float]:
        from vllm import SamplingParams

        parameters = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False, ignore_eos=True)
        async for output in self._engine.generate(_prompt(token_ids), parameters, f"log-probs/{id(token_ids)}"):
            rows = output.prompt_logprobs
        return [row[i].logprob for row, i in zip(rows[1:], token_ids[1:], strict=True)]

    async def do_sleep(self) -> None:
        if self._frees:
            await self._engine.sleep(level=1)

    async def do_wake(self) -> None:
        if self._frees:
            await self._engine.wake_up()

    async def end(self) -> None:
        self._engine.shutdown()


def part_seed(seed: int, position: int) -> int:
    """The seed of the part of a completion that begins at a position. vLLM's noise restarts with each part."""
    mixed = request_seed(seed, "part", 0, 0, position) if position else seed
    return mixed & (2**63 - 1)


def _prompt(token_ids: list[int]) -> dict[str, Any]:
    return {"type": "token", "prompt_token_ids": token_ids}


def _check_heads(size: int) -> None:
    """vLLM itself fails with the first request only."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if not CPUAttentionBackend.supports_head_size(size):
        sizes = ", ".join(map(str, CPUAttentionBackend.get_supported_head_sizes()))
        raise ConfigError(
            f"the model's attention heads have {size} numbers, and on a CPU vLLM has kernels for {sizes}; use "
            "rollout.name=native"
        )


if __name__ == "__main__":
    run(VLLMHost)
