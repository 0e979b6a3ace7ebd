"""How fast `burnish serve` answers several clients at once: `python benchmarks/serve.py FOLDER --clients 1 8 32`.

Each client asks again as soon as it has its answer, so requests arrive while others run. Measured behind the engine's
thread, where the server's own routes read from; `--http` goes through the real server and its event streams instead.
Prints a table: tokens per second of all clients together, and the time to the first piece of text.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.util import find_spec

from burnish.rollout.base import Sampling
from burnish.serving.app import ServedGeneration
from burnish.serving.engine_thread import EngineThread
from burnish.serving.loading import ModelOptions, ServedModel, load
from burnish.serving.requests import ServeRequest

PROMPT = "A long story about a very small model begins like this. " * 4
Ask = Callable[[int], AsyncIterator[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a model folder")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], help="clients at the same time")
    parser.add_argument("--requests", type=int, default=3, help="requests of each client, one after another")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer; every answer is this long")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--http", action="store_true", help="through the real server")
    options = parser.parse_args()
    if options.http and find_spec("httpx") is None:
        parser.error("--http needs the package httpx: pip install -c constraints.txt httpx")
    model = load(ModelOptions(options.folder, device=options.device, max_num_seqs=max(options.clients)))
    print(model.facts(), "through HTTP" if options.http else "behind the engine's thread")
    asyncio.run((through_http if options.http else behind_the_thread)(model, options))


async def behind_the_thread(model: ServedModel, options: argparse.Namespace) -> None:
    thread = EngineThread(model.engine)
    prompt = list(model.tokenizer(PROMPT)["input_ids"])

    async def ask(number: int) -> AsyncIterator[str]:
        sampling = Sampling(max_tokens=options.tokens, ignore_eos=True, seed=number)
        asked = ServeRequest([prompt], 1, sampling, log_probs=False, stream=True, include_usage=False)
        async for delta in ServedGeneration(asked, model, thread, f"r{number}").deltas():
            yield delta.text

    await table(ask, options)
    await thread.stop()


async def through_http(model: ServedModel, options: argparse.Namespace) -> None:
    import httpx

    from burnish.serving.server import ServeOptions, ServeServer, run
    from burnish.web.server import listen

    listener, ready = listen("127.0.0.1", 0), asyncio.get_running_loop().create_future()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
    serve_options = ServeOptions(ModelOptions(options.folder, max_num_seqs=max(options.clients)))
    running = asyncio.create_task(run(model, serve_options, listener, ready.set_result))
    server: ServeServer = await ready
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:

        async def ask(number: int) -> AsyncIterator[str]:
            body = {"model": model.name, "prompt": PROMPT, "max_tokens": options.tokens, "ignore_eos": True}
            async with client.stream("POST", url, json=body | {"seed": number, "stream": True}) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]

        await table(ask, options)
    server.should_exit = True
    await running


async def table(ask: Ask, options: argparse.Namespace) -> None:
    await one_client(ask, 0, 1)  # kernels and caches
    print(f"{'clients':>8}{'tokens/s':>10}{'first text, median s':>22}{'worst s':>9}{'answer, median s':>18}")
    for clients in options.clients:
        begin = time.perf_counter()
        work: list[Awaitable[list[tuple[float, float]]]] = [
            one_client(ask, 1 + i * options.requests, options.requests) for i in range(clients)
        ]
        times = [pair for pairs in await asyncio.gather(*work) for pair in pairs]
        seconds = time.perf_counter() - begin
        first, whole = [pair[0] for pair in times], [pair[1] for pair in times]
        speed = clients * options.requests * options.tokens / seconds
        print(
            f"{clients:>8}{speed:>10.0f}{statistics.median(first):>22.3f}{max(first):>9.3f}"
            f"{statistics.median(whole):>18.3f}",
            flush=True,
        )


async def one_client(ask: Ask, number: int, requests: int) -> list[tuple[float, float]]:
    """Seconds to the first text and to the end, of each request."""
    times = []
    for i in range(requests):
        begin, first = time.perf_counter(), 0.0
        async for text in ask(number + i):
            first = first or (time.perf_counter() - begin if text else 0.0)
        times.append((first, time.perf_counter() - begin))
    return times


if __name__ == "__main__":
    main()
