"""The file of responses: the rows it starts from, what decides them, and the output, made piece by piece. No torch.

`PromptFile` has the rows as a run reads them, and as Arrow holds them, so that every column is written unchanged.
`job_facts` identifies a job. `GenerationOutput` survives being killed: `out.parquet.parts/` has the facts of the job,
the lock, and parts such as `rows-000000128-000000256.parquet`, each written at once or not at all; `merge` streams them
into `out.parquet`. The facts stay in its metadata: another job is refused, not mixed in.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.config import GenerationConfig
from burnish.config.data import DataConfig
from burnish.config.key import keys_of, read
from burnish.config.values import show
from burnish.data.dataset import complete_row, find_prompt_key, kept_name, refuse_media
from burnish.data.files import Row, at, describe, is_parquet, locate, no_column, to_table
from burnish.errors import DataError
from burnish.models.folder import fingerprint, resolve_path
from burnish.tracking.disk import disk_problem
from burnish.tracking.lock import FolderLock
from burnish.user_code import import_libraries

log = logging.getLogger(__name__)

ADDED = pa.schema(
    {
        "responses": pa.list_(pa.string()),
        "response_log_probs": pa.list_(pa.float64()),
        "finish_reasons": pa.list_(pa.string()),
        "response_lengths": pa.list_(pa.int64()),
        "num_turns": pa.list_(pa.int64()),
        "num_tool_calls": pa.list_(pa.int64()),
    }
)
# Keys that may change from one attempt to the next: where the responses go, and how fast they come. Keys that have no
# effect may change too.
NEUTRAL = (
    *("data.output_path", "data.overwrite", "data.batch_size"),
    *("rollout.max_num_seqs", "rollout.max_num_batched_tokens"),
    *("rollout.timeout", "rollout.trajectory_timeout"),
    *("rollout.gpu_memory_utilization", "rollout.enforce_eager"),
    *("rollout.enable_chunked_prefill", "rollout.enable_prefix_caching"),
    *("trainer.device", "trainer.nnodes", "trainer.n_gpus_per_node"),
    *("trainer.processes_per_gpu", "trainer.worker_timeout", "trainer.ray_wait_register_center_timeout"),
)
MODEL_TEXTS = (".json", ".jinja", ".model", ".txt", ".py")  # endings of what says how a model reads and ends a text
KEY = b"burnish.generation"  # of the facts in a file's metadata
JOB, UNFINISHED = "job.json", ".writing"
PART = re.compile(r"rows-(\d+)-(\d+)\.parquet")
ROW_GROUP = 64 * 2**20  # bytes of rows that are merged together
OUTPUT = "data.output_path"
REPLACE = f"name another {OUTPUT}, or replace it with data.overwrite=true"
DIGEST = "sha256:"  # how facts begin that stand for contents


class PromptFile:
    """The rows of a file, each as `complete_row` has it; DataError for one that is wrong when it is asked for. Objects
    of a json file, which need not have the same fields, are kept as they were read."""

    def __init__(self, path: str, keys: DataConfig):
        self.path, self.keys, self._table = path, keys, describe(path)
        self._objects = None if is_parquet(Path(path)) else list(self._table)
        names = self._table.columns
        prompt = find_prompt_key(dict.fromkeys(names, True), keys.prompt_key)
        if prompt is None:
            raise no_column(path, keys.prompt_key, names, "Name the one with the prompts in data.prompt_key")
        for name in names:
            if name != prompt and kept_name(name) != name:
                log.info("%s: agent loops get column '%s' as '%s'", path, name, kept_name(name))

    def __len__(self) -> int:
        return self._table.rows

    def batches(self) -> Iterator[tuple[range, list[Row]]]:
        begin = 0
        for batch in self._table.batches():
            numbers = range(begin, begin + len(batch))
            yield numbers, self._completed(numbers, batch)
            begin = numbers.stop

    @cached_property
    def arrow(self) -> pa.Table:
        """The whole of a file that `batches` found readable: parquet's own types; for json those that fit all rows."""
        file = locate(self.path)
        return pq.ParquetFile(file).read() if self._objects is None else to_table(self._objects, file)

    def rows(self, numbers: range) -> list[Row]:
        if self._objects is not None:
            return self._completed(numbers, self._objects[numbers.start : numbers.stop])
        some = self.arrow.slice(numbers.start, len(numbers))
        return self._completed(numbers, some.to_pylist(maps_as_pydicts="lossy"))

    @contextlib.contextmanager
    def naming(self, number: int) -> Iterator[None]:
        try:
            yield
        except DataError as error:
            raise DataError(f"{at(self.path, number)}: {error}") from error

    def _completed(self, numbers: range, rows: list[Row]) -> list[Row]:
        keys, done = {"prompt_key": self.keys.prompt_key, "reward_fn_key": self.keys.reward_fn_key}, []
        for i, row in zip(numbers, rows, strict=True):
            refuse_media(row, (self.keys.image_key, self.keys.video_key), at(self.path, i))
            with self.naming(i):
                done.append(complete_row(row, position=i, **keys))
        return done


def output_schema(path: str, there: pa.Schema) -> pa.Schema:
    """The columns of the input and those that are added; DataError where a parquet file cannot have them."""
    taken = [name for name in ADDED.names if name in there.names]
    if taken:
        raise DataError(
            f"{path}: the column '{taken[0]}' already exists, and burnish generate adds one of this name; rename or "
            "drop it (burnish eval scores the responses of a file)"
        )
    schema = pa.schema([*there, *ADDED], metadata=there.metadata)
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:  # {} in every row, for one
        raise DataError(f"{path}: the output, a parquet file, cannot hold a column: {error}. Drop it") from error
    return schema


def job_facts(config: GenerationConfig, loops: Iterable[str] = ()) -> dict[str, Any]:
    """What decides the responses, by the names of keys; `loops` are the modules of the user's agent loops."""
    model, agent = config.model, config.rollout.agent
    libraries = import_libraries({"model.external_lib": model.external_lib})
    known = keys_of(GenerationConfig)
    decide = [name for name in known if name not in NEUTRAL and not known[name].about.inert]
    return {name: read(config, name) for name in decide} | {
        "data.path": _digest([locate(config.data.path)]),
        "model.path": _model_digest(model.path, weights=True),
        "model.tokenizer_path": model.tokenizer_path and _model_digest(model.tokenizer_path, weights=False),
        "model.external_lib": model.external_lib and _digest(_code(libraries)),
        "rollout.agent.agent_loop_config_path": agent.agent_loop_config_path
        and _digest([Path(agent.agent_loop_config_path), *_code(loops)]),
    }


def whose(theirs: Any, ours: Mapping[str, Any]) -> str:
    if not isinstance(theirs, Mapping):
        return "was not written by burnish generate"
    changes = []
    for name in dict.fromkeys((*ours, *theirs)):
        if (before := theirs.get(name)) != (now := ours.get(name)):
            is_digest = any(str(value).startswith(DIGEST) for value in (before, now))
            what = "had other contents" if is_digest else f"was {show(before)} and is {show(now)}"
            changes.append(f"{name} {what}")
    return f"was made by another command ({', '.join(changes)})"


def _model_digest(path: str, *, weights: bool) -> str:
    """Of the weights at a glance, and of every text file next to them: configuration, tokenizer, chat template."""
    folder = resolve_path(path, weights=weights)
    texts = _digest(sorted(file for file in folder.iterdir() if file.suffix in MODEL_TEXTS))
    return f"{texts} {fingerprint(folder)}" if weights else texts


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error}") from error
    return DIGEST + digest.hexdigest()


def _code(modules: Iterable[str]) -> list[Path]:
    """The files of imported modules, and of what else is imported from the folders that they were found in. Of
    installed packages only the modules themselves count, and burnish not at all."""
    found = {name: getattr(module, "__dict__", {}).get("__file__") for name, module in sys.modules.items()}
    files = {name: Path(file) for name, file in found.items() if file and not name.startswith("burnish.")}
    own = {files[name] for name in modules if name in files}
    places = {file.parents[name.count(".")] for name, file in files.items() if file in own}
    near = {file for file in files.values() if places.intersection(file.parents)}
    return sorted(own | {file for file in near if "site-packages" not in file.parts})


class GenerationOutput:
    """The output file of the job with these `facts`, and the lock on it. Unless `is_complete`, `begin` comes first.
    With `overwrite` a file that is there, and what another job left of one, may go; else entering raises."""

    def __init__(self, path: str | Path, facts: Mapping[str, Any], *, overwrite: bool = False):
        self.path = Path(path)
        self.folder = self.path.with_name(f"{self.path.name}.parts")
        self.facts: dict[str, Any] = json.loads(json.dumps(facts))  # as they will be read again
        self.overwrite = overwrite
        self._lock = FolderLock(self.folder, (OUTPUT,), self.path)

    def __enter__(self) -> Self:
        self._lock.take()
        try:
            self._refuse_others()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def is_complete(self) -> bool:
        """Whether the file is there, whole, of this job and to stay. Parts that a killed `merge` left are removed."""
        complete = not self.overwrite and _facts_in(self.path) == self.facts
        if complete and _job_in(self.folder) == self.facts:
            self._clear()
        return complete

    def begin(self, schema: pa.Schema, total: int) -> None:
        """Be ready to write `total` rows of `schema`: what other jobs left goes, sound parts of this one stay."""
        about = {**(schema.metadata or {}), KEY: json.dumps(self.facts).encode()}
        self.schema, self.total = schema.with_metadata(about), total
        if _job_in(self.folder) != self.facts:
            self._clear()
            with self._appearing(self.folder / JOB) as unfinished:
                unfinished.write_text(json.dumps(self.facts, indent=1), encoding="utf-8")
        end = 0
        for rows, file in self._parts():
            if rows.start >= end and rows.stop <= total and self._read(rows, file) is not None:
                end = rows.stop
            else:
                log.warning("%s is damaged; its rows are made again", file)
                file.unlink()

    @property
    def saved(self) -> int:
        return sum(len(rows) for rows, _ in self._parts())

    def missing(self, size: int) -> Iterator[range]:
        """The rows that are not there yet, at most `size` at a time."""
        begin = 0
        for there in [*(rows for rows, _ in self._parts()), range(self.total, self.total)]:
            for start in range(begin, there.start, size):
                yield range(start, min(start + size, there.start))
            begin = there.stop

    def write(self, rows: range, table: pa.Table) -> None:
        with self._appearing(self.folder / f"rows-{rows.start:09}-{rows.stop:09}.parquet") as unfinished:
            pq.write_table(table, unfinished, write_page_checksum=True)

    def merge(self) -> None:
        parts = self._parts()
        with self._appearing(self.path) as unfinished, pq.ParquetWriter(unfinished, self.schema) as writer:
            waiting: list[pa.Table] = []
            for rows, file in parts:
                if (table := self._read(rows, file)) is None:
                    raise DataError(f"{file} was damaged since it was written; the same command makes its rows again")
                waiting.append(table)
                if rows.stop == self.total or sum(table.nbytes for table in waiting) >= ROW_GROUP:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
        self._clear()

    def _read(self, rows: range, file: Path) -> pa.Table | None:
        """The table of a part; None where its bytes are not those that were written."""
        try:
            table = pq.ParquetFile(file, page_checksum_verification=True).read()
        except (pa.ArrowException, OSError):
            return None
        return table if len(table) == len(rows) and table.schema.equals(self.schema) else None

    def _parts(self) -> list[tuple[range, Path]]:
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        named = [(PART.fullmatch(file.name), file) for file in files]
        found = [(range(int(name[1]), int(name[2])), file) for name, file in named if name]
        return sorted(found, key=lambda part: part[0].start)

    def _clear(self) -> None:
        """Remove all parts, and the name of their owner last: killed in between, they are still known."""
        for _, file in self._parts():
            file.unlink()
        (self.folder / JOB).unlink(missing_ok=True)

    def _refuse_others(self) -> None:
        if self.path.is_dir():
            raise DataError(f"{self.path} is a folder; name a file in {OUTPUT}")
        if self.overwrite:
            return
        if self.path.exists():
            theirs = _facts_in(self.path)
            if theirs != self.facts:
                raise DataError(f"{self.path} already exists and {whose(theirs, self.facts)}; {REPLACE}")
        elif self.saved and (theirs := _job_in(self.folder)) != self.facts:
            raise DataError(
                f"{self.folder} holds {self.saved} rows of an unfinished output, which {whose(theirs, self.facts)}; "
                f"finish it with that command, {REPLACE}"
            )

    def _leave(self) -> None:
        """Let go. Without parts there is nothing to resume from, and no folder."""
        (self.folder / UNFINISHED).unlink(missing_ok=True)
        if not self._parts():
            (self.folder / JOB).unlink(missing_ok=True)
        self._lock.release()
        with contextlib.suppress(OSError):  # it is not empty
            self.folder.rmdir()

    @contextlib.contextmanager
    def _appearing(self, path: Path) -> Iterator[Path]:
        """A file to write into; it becomes `path` at the end, so that `path` is whole whenever the process dies."""
        unfinished = self.folder / UNFINISHED
        try:
            yield unfinished
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        except OSError as error:
            raise DataError(
                f"cannot write {path}: {disk_problem(error, OUTPUT)}. What was saved before is kept: the same command "
                "resumes"
            ) from error


def _facts_in(file: Path) -> Any:
    """The facts that a parquet file was made with; None for a file that `merge` did not write."""
    try:
        text = (pq.ParquetFile(file).schema_arrow.metadata or {}).get(KEY)
        return None if text is None else json.loads(text)
    except (pa.ArrowException, OSError, ValueError):
        return None


def _job_in(folder: Path) -> Any:
    try:
        return json.loads((folder / JOB).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
