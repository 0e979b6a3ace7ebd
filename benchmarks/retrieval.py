"""What retrieval finds and costs.

    python benchmarks/retrieval.py --corpus corpus.jsonl --qa train.jsonl dev.jsonl [--index DIR] [--encoder FOLDER]
    python benchmarks/retrieval.py --generated 1000000

The first prints recall at 3 and 10 for each data source of the questions: the share of a question's gold titles that
are among the titles of the passages found, averaged over the questions. Questions are JSON lines with question,
gold_titles and data_source. With --encoder, dense (flat and hnsw) and hybrid are measured too. --index measures
an index that is there instead of building one.

The second generates passages (about 60 words each, Zipf's law over 400,000 made-up words), builds a BM25 index over
them through the command line in a separate process, opens it in another, and prints seconds, peak memory, sizes and
milliseconds per query. Peak memory is that of the process (RSS), with what it maps of the index. An index that is
there already (--folder) is not built again, and has no results of that.

Both print one JSON line to keep.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from burnish.search.documents import Retriever
from burnish.search.encoder_settings import EncoderOptions
from burnish.search.index import HAS, IndexOptions, build_index, open_index
from burnish.search.manifest import MANIFEST, read_manifest

DEPTHS = (3, 10)
BATCH = 64
VOCABULARY, WORDS, TITLE_WORDS = 400_000, 60, 3
QUERIES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="the passages")
    parser.add_argument("--qa", type=Path, nargs="+", default=[], help="questions with gold titles")
    parser.add_argument("--index", type=Path, help="an index of the corpus, instead of building one")
    parser.add_argument("--encoder", type=Path, help="a Hugging Face encoder, for dense and hybrid")
    parser.add_argument("--generated", type=int, metavar="N", help="build and search N generated passages")
    parser.add_argument("--folder", type=Path, help="where the generated corpus and its index go [a temporary folder]")
    options = parser.parse_args()
    if options.generated:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure_generated(options.folder or Path(folder), options.generated)))
        return
    if not options.qa or not (options.corpus or options.index):
        parser.error("give --qa with --corpus or --index, or --generated N")
    questions = [json.loads(line) for path in options.qa for line in path.read_text().splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure_recall(indexes(options, Path(folder)), questions)))


def indexes(options: argparse.Namespace, folder: Path) -> dict[str, Callable[[], Retriever]]:
    """What is measured: a name, and how it is opened."""
    index = options.index or folder / "index"
    if not options.index:
        encoder = EncoderOptions(options.encoder)
        build_index(IndexOptions(options.corpus, index, "both" if options.encoder else "bm25", encoder))
    plan = read_manifest(index).plan
    found: dict[str, Callable[[], Retriever]] = {mode: partial(open_index, index, mode=mode) for mode in HAS[plan.kind]}
    if plan.dense and plan.dense.faiss == "flat":
        found["dense hnsw"] = partial(as_hnsw, index)
    return found


def as_hnsw(index: Path) -> Retriever:
    """The vectors of a flat index as --faiss hnsw would have them, without embedding them again."""
    from burnish.search import dense

    retriever = open_index(index, mode="dense")
    flat = retriever.ranker._index
    graph = dense.make("hnsw", flat.d, flat.ntotal, np.empty((0, 0)))
    graph.add(flat.reconstruct_n(0, flat.ntotal))
    retriever.ranker._index = graph
    return retriever


def measure_recall(
    opened: dict[str, Callable[[], Retriever]], questions: Sequence[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    results = {}
    for name, make in opened.items():
        retriever = make()
        began = time.perf_counter()
        shares = recall(retriever, questions)
        per_query = 1000 * (time.perf_counter() - began) / len(questions)
        results[name] = {**shares, "ms_per_query": round(per_query, 2)}
        for source, values in shares.items():
            recalls = "  ".join(f"@{depth} {values[f'recall@{depth}']:.3f}" for depth in DEPTHS)
            print(f"{name:<12}{source:<18}{values['questions']:>5} questions  {recalls}  {per_query:.1f} ms per query")
    return results


def recall(retriever: Retriever, questions: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Per data source, the mean share of gold titles among the titles found, at each depth."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: {depth: [] for depth in DEPTHS})
    for begin in range(0, len(questions), BATCH):
        batch = questions[begin : begin + BATCH]
        for row, hits in zip(batch, retriever.search([row["question"] for row in batch], max(DEPTHS)), strict=True):
            gold, titles = set(row["gold_titles"]), [hit.document.title for hit in hits]
            for depth in DEPTHS:
                found[row["data_source"]][depth].append(len(gold & set(titles[:depth])) / len(gold))
    return {
        source: {
            "questions": len(shares[DEPTHS[0]]),
            **{f"recall@{depth}": round(float(np.mean(values)), 4) for depth, values in shares.items()},
        }
        for source, shares in sorted(found.items())
    }


def measure_generated(folder: Path, count: int) -> dict[str, Any]:
    corpus, index = folder / f"generated-{count}.jsonl", folder / f"index-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    if not corpus.exists():
        generate(corpus, count)
    results: dict[str, Any] = {"passages": count, "corpus_mb": round(corpus.stat().st_size / 1e6)}
    if not (index / MANIFEST).exists():  # one that is there would only be checked
        command = ["-m", "burnish.cli.main", "retriever", "index", str(corpus), "--out", str(index)]
        results["build_s"], results["build_cpu_s"], results["build_peak_gb"] = run(command)
    results["index_mb"] = round(sum(path.stat().st_size for path in index.rglob("*") if path.is_file()) / 1e6)
    report = folder / "search.json"
    _, _, memory = run([__file__, "--search", str(index), str(report)])
    results |= {**json.loads(report.read_text()), "search_peak_gb": memory}
    print("  ".join(f"{name} {value}" for name, value in results.items()))
    return results


def run(words: list[str]) -> tuple[float, float, float]:
    """Seconds, seconds of CPU and peak memory (GB) of a Python process."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words])
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"failed: {' '.join(words)}")
    spent = time.perf_counter() - began, used.ru_utime + used.ru_stime
    return round(spent[0], 1), round(spent[1], 1), round(used.ru_maxrss / 1e6, 2)


def generate(path: Path, count: int) -> None:
    """Passages of made-up words whose frequencies follow Zipf's law; every title is its own."""
    rng = np.random.default_rng(0)
    words = vocabulary(rng)
    unfinished = path.with_suffix(".tmp")
    with open(unfinished, "w") as file:
        for begin in range(0, count, 10_000):
            for number in range(begin, min(begin + 10_000, count)):
                length = max(8, int(rng.normal(WORDS, 15)))
                title, text = np.split(draw(rng, TITLE_WORDS + length), [TITLE_WORDS])
                contents = f'"{" ".join(words[title]).title()} {number}"\n{" ".join(words[text])}.'
                file.write(json.dumps({"id": str(number), "contents": contents}) + "\n")
    unfinished.replace(path)


def vocabulary(rng: np.random.Generator) -> np.ndarray:
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    lengths = rng.integers(3, 11, VOCABULARY)
    return np.array(["".join(letters[rng.integers(0, len(letters), length)]) for length in lengths], dtype=object)


def draw(rng: np.random.Generator, count: int) -> np.ndarray:
    """Numbers of words: the k-th is drawn about 1/k as often as the first."""
    return (np.exp(rng.random(count) * np.log(VOCABULARY)) - 1).astype(np.int64)


def search_index(index: Path, report: Path) -> None:
    """In a separate process: open an index, ask it, write down how long that took."""
    began = time.perf_counter()
    retriever = open_index(index)
    opened = time.perf_counter() - began
    rng = np.random.default_rng(1)
    words = vocabulary(np.random.default_rng(0))
    queries = [" ".join(words[draw(rng, 8)]) for _ in range(QUERIES)]
    began, cpu = time.perf_counter(), time.process_time()
    found = sum(len(hits) for hits in retriever.search(queries, max(DEPTHS)))
    results = {
        "open_s": round(opened, 1),
        "ms_per_query": round(1000 * (time.perf_counter() - began) / QUERIES, 2),
        "cpu_ms_per_query": round(1000 * (time.process_time() - cpu) / QUERIES, 2),
        "found": found,
    }
    report.write_text(json.dumps(results))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--search"]:
        search_index(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
