"""How fast the retrieval server answers: `python benchmarks/retriever_load.py --index DIR --qa FILE.jsonl`.

Starts `burnish retriever serve` as a separate process (or takes the one at `--url`) and asks it the questions of a
file, each once. Every client sends one query at a time over its own connection and the next when it has its answer; the
last row is burnish's own client with as many trajectories, which share requests. Without the cache first, then with
answers that are all kept already. Prints a table: queries per second of all clients together, and milliseconds from a
query to its documents. The clients take processor time too: on a machine with few cores, that of the server.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from burnish.search.client import RetrieverClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--index", help="folder of an index to serve")
    where.add_argument("--url", help="a server that runs, as in http://127.0.0.1:8000/retrieve; as its cache is")
    parser.add_argument("--qa", required=True, nargs="+", help="JSON lines with the queries in the column question")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64], help="clients at the same time")
    parser.add_argument("--queries", type=int, default=1000, help="different queries of a row, at most")
    parser.add_argument("--topk", type=int, default=3)
    parser.add_argument("--mode", help="of the index: bm25, dense or hybrid")
    options = parser.parse_args()
    lines = [line for file in options.qa for line in Path(file).read_text(encoding="utf-8").splitlines()]
    queries = list(dict.fromkeys(json.loads(line)["question"] for line in lines))[: options.queries]
    print(f"{len(queries)} queries, topk {options.topk}")
    print(f"{'cache':>7}{'clients':>12}{'queries/s':>11}{'p50 ms':>9}{'p99 ms':>9}")
    if options.url:
        asyncio.run(table("as is", options.url, queries, options))
        return
    for name, documents in (("off", 0), ("on", 10**9)):
        with served(options, documents) as url:
            asyncio.run(table(name, url, queries, options))


@contextmanager
def served(options: argparse.Namespace, cached_documents: int) -> Iterator[str]:
    """The address of a server that runs for as long as the block."""
    words = [options.index, "--port", "0", "--cache", str(cached_documents)]
    words += ["--mode", options.mode] if options.mode else []
    program = [sys.executable, "-m", "burnish.search.server", *words]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline().strip()
        if not line:
            sys.exit("the server did not start")
        print(line, flush=True)
        yield line.rpartition(" ")[2]
    finally:
        process.terminate()
        process.wait(60)


async def table(name: str, url: str, queries: list[str], options: argparse.Namespace) -> None:
    if name == "on":
        await measure(lambda: Connection(url, options.topk), 8, queries)
    for clients in options.clients:
        show(name, str(clients), await measure(lambda: Connection(url, options.topk), clients, queries))
    shared = Shared(url, options.topk)
    show(name, f"{max(options.clients)} shared", await measure(lambda: shared, max(options.clients), queries))
    await shared.client.close()


def show(name: str, clients: str, measured: tuple[float, list[float]]) -> None:
    seconds, times = measured[0], sorted(measured[1])
    p50, p99 = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
    print(f"{name:>7}{clients:>12}{len(times) / seconds:>11.0f}{p50:>9.1f}{p99:>9.1f}", flush=True)


async def measure(connect: Callable[[], "Connection | Shared"], clients: int, queries: list[str]):
    """Seconds in all, and those of each query."""
    left, times = iter(queries), list[float]()

    async def one_client() -> None:
        connection = connect()
        for query in left:
            begin = time.perf_counter()
            await connection.ask(query)
            times.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(one_client() for _ in range(clients)))
    return time.perf_counter() - begin, times


class Connection:
    """One connection that is kept, and no more HTTP than the server needs: what is measured is the server."""

    def __init__(self, url: str, topk: int):
        self._url, self._topk = urlsplit(url), topk
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, query: str) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._url.hostname, self._url.port or 80)
        reader, writer = self._streams
        body = json.dumps({"queries": [query], "topk": self._topk, "return_scores": True}).encode()
        head = f"POST {self._url.path} HTTP/1.1\r\nHost: {self._url.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, *headers = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in headers if line.startswith(b"content-length"))
        answer = await reader.readexactly(length)
        if b" 200 " not in status or len(json.loads(answer)["result"]) != 1:
            sys.exit(f"{status.decode()}: {answer[:200].decode()}")


class Shared:
    """burnish's own client, one for all."""

    def __init__(self, url: str, topk: int):
        self.client = RetrieverClient(url, topk=topk, timeout=60.0, retries=0, cache=False)

    async def ask(self, query: str) -> None:
        await self.client.search(query)


if __name__ == "__main__":
    main()
