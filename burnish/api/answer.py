"""`generate`, `evaluate` and `serve`: what the commands of these names do, with rows and results as Python has them."""

import asyncio
import atexit
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from burnish.api.call import public
from burnish.api.data import named_in_errors, prompt_row, to_files
from burnish.api.keys import given_keys, load
from burnish.api.reward import read_reward
from burnish.api.table import Rows
from burnish.config import EVAL, GENERATION, finalise_generation
from burnish.config.finalise import finalise_eval
from burnish.data.files import read_rows
from burnish.entry.arguments import need_packages, read_key
from burnish.errors import ConfigError
from burnish.literal import one_line

if TYPE_CHECKING:
    from burnish.serving.server import ServeServer

CLOSE_S = 30.0
OUTPUT = "data.output_path"


@public
def generate(
    model: str | Path | None = None,
    data: Any = None,
    *,
    n: int | None = None,
    temperature: float | None = None,
    prompt_length: int | None = None,
    response_length: int | None = None,
    output: str | Path | None = None,
    keys: Any = None,
) -> Rows:
    """Responses to prompts, as `burnish generate` samples them: the rows, with `responses` and more.

    data              rows or prompts, as for `burnish.train`
    n                 data.n_samples, responses per prompt [1]
    temperature       rollout.temperature
    prompt_length     rollout.prompt_length, in tokens
    response_length   rollout.response_length, in tokens
    output            data.output_path: a parquet file that keeps them; an interrupted call resumes from it
    keys              any other key of `burnish generate`, as a dict or a GenerationConfig
    """
    short = [
        ("model", "model.path", model),
        ("data", "data.path", data),
        ("n", "data.n_samples", n),
        ("temperature", "rollout.temperature", temperature),
        ("prompt_length", "rollout.prompt_length", prompt_length),
        ("response_length", "rollout.response_length", response_length),
        ("output", OUTPUT, output),
    ]
    given = given_keys(GENERATION, keys, short)
    with _place(given.get(OUTPUT)) as place, named_in_errors(place.parent):
        given[OUTPUT] = str(place)
        given["data.path"] = _file_of(given, place.parent, f"{place.stem}.prompts")

        from burnish.trainer import generation

        loaded = load(GENERATION, given)
        loaded.notices += finalise_generation(loaded.config, loaded.explicit)
        generation.generate(loaded)
        return Rows(read_rows(place))


class Scores:
    """What `evaluate` found. `mean` is over all rows, of each row's mean score; `rows` have a score per response."""

    def __init__(self, rows: Rows, means: dict[str, float | None], metrics: dict[str, float]):
        self.rows, self.means, self.metrics = rows, means, metrics  # means: by data source
        by_row = [row["scores"] for row in rows]
        scored = [[score for score in scores if score is not None] for scores in by_row]
        each = [sum(scores) / len(scores) for scores in scored if scores]
        self.mean = sum(each) / len(each) if each else float("nan")

    def __repr__(self) -> str:
        parts = [f"{name} {'no score' if mean is None else f'{mean:.4f}'}" for name, mean in self.means.items()]
        return one_line(f"Scores: mean {self.mean:.4f} of {len(self.rows)} rows ({', '.join(parts)})")


@public
def evaluate(
    model: str | Path | None = None,
    data: Any = None,
    reward: Any = None,
    *,
    keys: Any = None,
    generation_keys: Any = None,
    **sampling: Any,
) -> Scores:
    """Score responses, as `burnish eval` does: those of `model` to the rows, or without a model those in the rows.

    data, reward      as for `burnish.train`
    keys              any other key of `burnish eval`, as a dict or an EvalConfig
    sampling          as for `burnish.generate`: n, temperature, …; its keys are `generation_keys`
    """
    scored_by = read_reward(reward)
    if model is not None:
        data = generate(model, data, **sampling, keys=generation_keys)
    elif generation_keys or sampling:
        raise ConfigError("evaluate: without model= nothing is generated; give a model, or leave the sampling out")
    given = given_keys(EVAL, keys, [("data", "data.path", data), *scored_by.short])
    with _place(given.get(OUTPUT), "scores.json") as place, scored_by.shared(), named_in_errors(place.parent):
        given[OUTPUT] = str(place)
        given["data.path"] = _file_of(given, place.parent, "responses")

        from burnish.trainer.evaluation import REWARD_INFO, SCORES, measure

        loaded = load(EVAL, given)
        loaded.notices += finalise_eval(loaded.config, loaded.explicit) + scored_by.notices
        rows, samples, evaluation = measure(loaded)
    scored: list[dict[str, Any]] = [{**row, SCORES: [], REWARD_INFO: []} for row in rows]
    for sample in samples:
        scored[sample.row][SCORES].append(sample.result and sample.result.score)
        scored[sample.row][REWARD_INFO].append(sample.result and sample.result.info)
    return Scores(Rows(scored), {source.name: source.mean for source in evaluation.sources}, evaluation.metrics)


class Server:
    """A model that is served, until `close()` or the end of a `with` block."""

    def __init__(self, url: str, name: str, server: "ServeServer", thread: threading.Thread):
        self.url, self.name = url, name
        self._server, self._thread = server, thread
        atexit.register(self.close)

    def close(self) -> None:
        """Running requests may finish; then the model is unloaded."""
        atexit.unregister(self.close)
        self._server.should_exit = True
        self._thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.url!r}, model {self.name!r})"


@public
def serve(
    model: str | Path,
    *,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str | None = None,
    device: str = "auto",
    max_model_len: int | None = None,
    max_num_seqs: int = 64,
) -> Server:
    """An OpenAI-compatible endpoint over a model, in a thread; the rest is as for `burnish serve`.

    port      0: any free one; `server.url` has it
    name      what clients call the model [the folder's name]
    """
    need_packages("burnish.serve", "serve")
    from burnish.serving.loading import ModelOptions
    from burnish.serving.loading import load as load_model
    from burnish.serving.server import ServeOptions, print_address, run
    from burnish.web.server import listen, url

    key = read_key(api_key, "BURNISH_API_KEY")
    folder = ModelOptions(str(model), device=device, max_model_len=max_model_len, max_num_seqs=max_num_seqs)
    options = ServeOptions(folder, host, port, name, key)
    with listen(host, port) as listener:
        served = load_model(folder, name)
        owned = listener.dup()
    ready: Future[ServeServer] = Future()

    def work() -> None:
        try:
            with closing(owned), closing(served.engine):
                asyncio.run(run(served, options, owned, ready.set_result))
        except BaseException as error:  # raised in `serve`, unless it has returned
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=work, name="burnish-serve", daemon=True)
    thread.start()
    server = ready.result()
    print_address(served, options, owned)
    return Server(f"{url(owned)}/v1", served.name, server, thread)


@contextmanager
def _place(output: Any, name: str = "responses.parquet") -> Iterator[Path]:
    """The output file; in a folder that is removed where none was named."""
    if output is not None:
        yield Path(output).expanduser()
        return
    with tempfile.TemporaryDirectory(prefix="burnish-") as folder:
        yield Path(folder) / name


def _file_of(given: Mapping[str, Any], folder: Path, name: str) -> str:
    files = to_files(given["data.path"], folder, name, partial(prompt_row, keys=given))
    if len(files) > 1:
        raise ConfigError(f"data names {len(files)} files, and one is read at a time")
    return files[0]
