"""`burnish retriever serve --index FOLDER`: the retrieval server over an index.

The flags are here; what serves is `burnish/search/server.py`, imported when the flags are right.
"""

from importlib.util import find_spec
from pathlib import Path

from burnish.cli.arguments import Parser, not_negative, positive
from burnish.errors import ConfigError, install_command

PACKAGES = ("fastapi", "uvicorn")


def main(argv: list[str]) -> int:
    from burnish.search.documents import MAX_TOPK

    flags = parser().parse_args(argv)
    if not 0 <= flags.port <= 65535:
        raise ConfigError(f"--port {flags.port}: ports go from 1 to 65535; 0 takes any that is free")
    if flags.topk > MAX_TOPK:
        raise ConfigError(f"--topk {flags.topk}: at most {MAX_TOPK}")
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"burnish retriever serve needs the package {' and '.join(missing)}; "
            f"install it with {install_command('search')}"
        )
    from burnish.search.server import RetrieverServeOptions, serve

    return serve(
        RetrieverServeOptions(
            index=Path(flags.index).expanduser(),
            host=flags.host,
            port=flags.port,
            topk=flags.topk,
            mode=flags.mode,
            rerank=flags.rerank,
            device=flags.device,
            corpus=Path(flags.corpus).expanduser() if flags.corpus else None,
            cached_documents=flags.cache,
        )
    )


def parser() -> Parser:
    made = Parser(
        "retriever serve",
        "A retrieval server over an index that `burnish retriever index` built: POST /retrieve, and /health, /metrics, "
        "/docs.",
        "retriever serve --index index/wiki --port 8001 --topk 5",
    )
    made.add_argument("--index", required=True, metavar="FOLDER", help="the folder of the index")
    made.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]; 0.0.0.0: all")
    made.add_argument("--port", type=int, default=8000, help="port to listen on [8000]; 0: any that is free")
    made.add_argument(
        "--topk", type=positive, default=3, metavar="N", help="documents per query where a request does not say [3]"
    )
    made.add_argument("--mode", metavar="NAME", help="bm25, dense or hybrid [hybrid where the index has both]")
    made.add_argument("--rerank", metavar="FOLDER", help="cross-encoder that puts what was found in order [none]")
    made.add_argument("--device", default="cpu", help="where an encoder and the cross-encoder run [cpu]")
    made.add_argument("--corpus", metavar="FILE", help="refuse an index that was built from another corpus than this")
    made.add_argument(
        "--cache",
        type=not_negative,
        default=100_000,
        metavar="N",
        help="documents kept for queries that come again [100000]; 0: none",
    )
    return made
