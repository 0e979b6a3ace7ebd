"""The file of responses: the rows it starts from, the columns it adds, and what decides them.

`read_table` gives the input as Arrow holds it, so that every column leaves as it came; `output_schema` adds the columns
of responses; `job_facts` tells one output from another (`trainer/parts.py`). Imports no torch.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from burnish.config import GenerationConfig
from burnish.config.key import read
from burnish.data.files import locate, read_rows, to_table
from burnish.errors import DataError
from burnish.models.fingerprint import fingerprint
from burnish.models.folder import resolve_path
from burnish.trainer.parts import DIGEST

ADDED = pa.schema(
    {
        "responses": pa.list_(pa.string()),
        "response_log_probs": pa.list_(pa.float64()),
        "finish_reasons": pa.list_(pa.string()),
        "response_lengths": pa.list_(pa.int64()),
    }
)
# Keys that decide the responses, besides the contents of file and model. What only decides how fast they come (batch
# size, device, sequences at a time) may change from one attempt to the next.
DECIDING = (
    *("data.prompt_key", "data.n_samples", "data.truncation", "data.apply_chat_template_kwargs"),
    *("model.override_config", "model.dtype", "rollout.dtype", "rollout.name"),
    *("rollout.prompt_length", "rollout.response_length", "rollout.temperature", "rollout.top_k", "rollout.top_p"),
    *("rollout.min_p", "rollout.do_sample", "rollout.ignore_eos", "rollout.stop", "rollout.stop_token_ids"),
    *("rollout.agent.default_agent_loop", "rollout.agent.agent_loop_config_path", "trainer.seed"),
)
MODEL_TEXTS = (".json", ".jinja", ".model", ".txt", ".py")  # endings of what says how a model reads and ends a text


def read_table(path: str) -> pa.Table:
    """The rows of a file that is known to be readable: a parquet file's own types; for JSON those that fit all rows."""
    file = locate(path)
    if file.name.lower().endswith(".parquet"):
        return pq.ParquetFile(file).read()
    return to_table(read_rows(file), file)


def output_schema(path: str, there: pa.Schema) -> pa.Schema:
    """The columns of the input and those that are added; DataError where a parquet file cannot have them."""
    taken = [name for name in ADDED.names if name in there.names]
    if taken:
        raise DataError(
            f"{path}: there is a column '{taken[0]}' already, and burnish generate adds one of this name; rename or "
            "drop it (burnish eval scores the responses of a file)"
        )
    schema = pa.schema([*there, *ADDED], metadata=there.metadata)
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), schema).close()
    except pa.ArrowException as error:  # {} in every row, for one
        raise DataError(f"{path}: the output, a parquet file, cannot hold a column: {error}. Drop it") from error
    return schema


def job_facts(config: GenerationConfig) -> dict[str, Any]:
    """What decides the responses, by the names of keys."""
    file, model = locate(config.data.path), config.model
    try:
        contents = DIGEST + _hashed([file]).hexdigest()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error}") from error
    return {
        "data.path": contents,
        "model.path": _model_digest(model.path, weights=True),
        "model.tokenizer_path": model.tokenizer_path and _model_digest(model.tokenizer_path, weights=False),
        **{name: read(config, name) for name in DECIDING},
    }


def _model_digest(path: str, *, weights: bool) -> str:
    """Of the weights at a glance, and of every text beside them: configuration, tokenizer, chat template."""
    folder = resolve_path(path, weights=weights)
    digest = _hashed(sorted(file for file in folder.iterdir() if file.suffix in MODEL_TEXTS))
    if weights:
        digest.update(fingerprint(folder).encode())
    return DIGEST + digest.hexdigest()


def _hashed(files: Iterable[Path]) -> "hashlib._Hash":
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest
