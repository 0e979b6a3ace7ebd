"""The file of responses: the rows it starts from, the columns it adds, and what decides them.

`PromptFile` has the rows of the input as a run reads them, and as Arrow holds them, so that every column is written
unchanged; `output_schema` adds the columns of responses. `job_facts` identifies a job (`trainer/parts.py`): the value
of every key, except those about place and speed, and a digest of the contents of every file that a key names; `whose`
describes how two jobs differ. Imports no torch.
"""

import hashlib
import importlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.config import GenerationConfig
from burnish.config.data import DataConfig
from burnish.config.key import keys_of, read
from burnish.config.values import show
from burnish.data.files import Row, at, describe, is_parquet, locate, no_column, to_table
from burnish.data.row import complete_row, find_prompt_key, kept_name, refuse_media
from burnish.errors import ConfigError, DataError
from burnish.models.folder import fingerprint, resolve_path

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
    *("rollout.max_num_seqs", "rollout.max_num_batched_tokens", "rollout.timeout"),
    *("rollout.gpu_memory_utilization", "rollout.enforce_eager"),
    *("rollout.enable_chunked_prefill", "rollout.enable_prefix_caching"),
    *("trainer.device", "trainer.nnodes", "trainer.n_gpus_per_node"),
)
MODEL_TEXTS = (".json", ".jinja", ".model", ".txt", ".py")  # endings of what says how a model reads and ends a text
DIGEST = "sha256:"  # how facts begin that stand for contents


class PromptFile:
    """The rows of a file, each as `complete_row` has it; DataError for one that is wrong when it is asked for.

    Parquet is kept as Arrow holds it, and a row is made of it when it is wanted. The objects of a json file, which need
    not have the same fields, are kept as they were read.
    """

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
        """All rows from the first, some at a time, with their numbers."""
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
        """Some of its rows."""
        if self._objects is not None:
            return self._completed(numbers, self._objects[numbers.start : numbers.stop])
        some = self.arrow.slice(numbers.start, len(numbers))
        return self._completed(numbers, some.to_pylist(maps_as_pydicts="lossy"))

    @contextmanager
    def naming(self, number: int) -> Iterator[None]:
        """A DataError from inside names the row."""
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
    libraries = [name.strip() for name in (model.external_lib or "").split(",") if name.strip()]
    for name in libraries:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"model.external_lib={model.external_lib}: {name} could not be imported ({error})"
            ) from error
    facts = {
        name: read(config, name)
        for name, known in keys_of(GenerationConfig).items()
        if name not in NEUTRAL and not known.about.inert
    }
    return facts | {
        "data.path": _digest([locate(config.data.path)]),
        "model.path": _model_digest(model.path, weights=True),
        "model.tokenizer_path": model.tokenizer_path and _model_digest(model.tokenizer_path, weights=False),
        "model.external_lib": model.external_lib and _digest(_code(libraries)),
        "rollout.agent.agent_loop_config_path": agent.agent_loop_config_path
        and _digest([Path(agent.agent_loop_config_path), *_code(loops)]),
    }


def whose(theirs: Any, ours: Mapping[str, Any]) -> str:
    """How the job that wrote `theirs` differs from this one."""
    if not isinstance(theirs, Mapping):
        return "was not written by burnish generate"
    changes = []
    for name in dict.fromkeys((*ours, *theirs)):
        before, now = theirs.get(name), ours.get(name)
        if before != now:
            is_digest = any(isinstance(value, str) and value.startswith(DIGEST) for value in (before, now))
            changes.append(
                f"{name} had other contents" if is_digest else f"{name} was {show(before)} and is {show(now)}"
            )
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
    """The files of imported modules, and of what else is imported from the folders that they were found in.

    Installed packages are no user's to edit; of them only the modules themselves count, and burnish not at all.
    """
    found = {name: getattr(module, "__dict__", {}).get("__file__") for name, module in sys.modules.items()}
    files = {name: Path(file) for name, file in found.items() if file and not name.startswith("burnish.")}
    own = {files[name] for name in modules if name in files}
    places = {file.parents[name.count(".")] for name, file in files.items() if file in own}
    imported = {
        file for file in files.values() if places.intersection(file.parents) and "site-packages" not in file.parts
    }
    return sorted(own | imported)
