"""`burnish quickstart --task search` and `--task calculator`: a small model (examples/nano/make_nano_agent.py) learns
to search and to call a tool. The facts of the search task are made for the run, and served by a separate process."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from burnish.cli.quickstart import Lesson, Share, common_keys, write_rows
from burnish.entry.ending import terminated_as_interrupted
from burnish.errors import BurnishError
from burnish.literal import print_text

NANO_AGENT = Path(__file__).parents[1] / "models" / "nano_agent"
LR = "1e-4"
TOPK, TURNS = 2, 2  # documents for a search, searches for an answer
START_S, STOP_S = 60.0, 15.0  # seconds that the server has to answer, and to end
PAUSE_S = 0.05

SEARCH_INTRODUCTION = """
A model of 0.4 million parameters, which comes with burnish, answers questions
about invented people. The facts are made for this run, so nobody can know them:
they are in the documents of a retrieval server, a separate process.
Supervised fine-tuning taught the model to search, and then to guess. Now it
learns by RL: 16 questions a step, 8 answers to each, a reward of 1 for the
right name, and nothing else. It runs this command while the server runs:
"""
CALCULATOR_INTRODUCTION = """
A model of 0.4 million parameters, which comes with burnish, multiplies numbers
of three digits, which is too much for it without the calculator that it may
call. Supervised fine-tuning taught it to call, and then to guess. Now it learns
by RL: 16 questions a step, 8 answers to each, a reward of 1 for the right
number, and nothing else. It runs this command:
"""


def write_facts(seed: int, folder: Path, held_out: int) -> None:
    """The corpus and the question files of the search task."""
    from burnish.data.files import write_parquet
    from burnish.data.tasks import facts

    facts.write_corpus(seed, corpus(folder))
    for split, count in {"train": len(facts.world(seed)["train"]), "test": held_out}.items():
        write_parquet(facts.rows(split, count, seed), folder / "data" / f"{split}.parquet")


def search_job(seed: int, folder: Path, steps: int) -> list[str]:
    """The keys of the search run except the server's address."""
    return [
        *common_keys(seed, folder, steps, NANO_AGENT, LR),
        "data.max_prompt_length=32",
        "data.max_response_length=160",
        "data.max_obs_length=64",
        "do_search=true",
        f"max_turns={TURNS}",
        f"retriever.topk={TOPK}",
    ]


def calculator_job(seed: int, folder: Path, steps: int) -> list[str]:
    """The keys of the calculator run. Its rows name the agent and its tool."""
    return [
        *common_keys(seed, folder, steps, NANO_AGENT, LR),
        "data.max_prompt_length=40",
        "data.max_response_length=96",
        "actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3",
    ]


def corpus(folder: Path) -> Path:
    return folder / "data" / "corpus.jsonl"


@contextmanager
def serving(folder: Path) -> Iterator[list[str]]:
    """The retrieval server over the folder's corpus while this is open; yields the key with its address."""
    index, log = folder / "data" / "index", folder / "data" / "retriever.log"
    shutil.rmtree(index, ignore_errors=True)  # of an earlier run, with other facts
    retriever = [sys.executable, "-m", "burnish.cli.main", "retriever"]
    build = ["index", str(corpus(folder)), "--out", str(index)]
    made = subprocess.run([*retriever, *build], capture_output=True, text=True)
    if made.returncode:
        raise BurnishError(f"burnish retriever index failed: {made.stderr.strip()[-500:]}")
    serve = ["serve", str(index), "--port", "0", "--topk", str(TOPK)]
    with terminated_as_interrupted(), log.open("w", encoding="utf-8") as output:
        server = subprocess.Popen([*retriever, *serve], stdout=output, stderr=subprocess.STDOUT)
        try:
            url = wait_for(server, log)
            port = str(urlsplit(url).port)
            command = shlex.join(["burnish", "retriever", *(port if word == "0" else word for word in serve)])
            print_text(f"retrieval server: process {server.pid} at {url}, the same as `{command}`\n")
            yield [f"retriever.url={url}"]
        finally:
            end(server)


def wait_for(server: "subprocess.Popen[bytes]", log: Path, seconds: float = START_S) -> str:
    """The address that the server prints, once it answers there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        printed = re.search(r"http://\S+/retrieve", log.read_text(encoding="utf-8"))
        if printed and is_healthy(printed[0].removesuffix("retrieve") + "health"):
            return printed[0]
        time.sleep(PAUSE_S)
    state = f"did not answer within {seconds:.0f} s" if server.poll() is None else f"ended with {server.returncode}"
    raise BurnishError(f"the retrieval server {state}; its output: {log.read_text(encoding='utf-8').strip()[-500:]}")


def is_healthy(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(json.load(answer)["status"] == "ok")
    except (URLError, TimeoutError, ConnectionError):
        return False


def end(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(STOP_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


CALLED = re.compile(r"<\|start\|>tool\n-?[0-9.]+<\|end\|>")
SEARCH = Lesson(
    SEARCH_INTRODUCTION,
    "GRPO on questions that have to be looked up",
    "val-core/searchR1_facts/acc/mean@1",
    write_facts,
    search_job,
    serving,
    (Share("answers with a valid search", lambda text: "</search>\n\n<information>" in text),),
)
CALCULATOR = Lesson(
    CALCULATOR_INTRODUCTION,
    "GRPO on products, with a calculator",
    "val-core/multiply/acc/mean@1",
    partial(write_rows, "calculator"),
    calculator_job,
    shares=(Share("answers with a valid call", lambda text: CALLED.search(text) is not None),),
)
