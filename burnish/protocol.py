"""DataProto: the batch that crosses every boundary (controller to worker, rollout to trainer, memory to disk).

    batch             TensorDict, every column (B, ...), or None where there is no tensor column
    non_tensor_batch  dict of numpy object arrays of length B: texts, dicts, uids
    meta_info         run facts such as the temperature, or metrics; never a hidden argument

Methods give a new DataProto whose tensors may share memory with the old one, except `pop`, `rename`, `union`,
`reorder`, `padding` and `to`, which change the object they are called on. A mistake in a call is a KeyError, ValueError
or TypeError that names the column; only files have typed errors (DataError, CheckpointError).
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from burnish.errors import CheckpointError, DataError

Rows = Sequence[int] | Sequence[bool] | np.ndarray | torch.Tensor  # row numbers, or a mask of length B

_REST = "__rest__"  # the name of the JSON part inside a safetensors file
_FORMAT = {"format": "burnish.DataProto", "version": "1"}


@dataclass(frozen=True)
class DataProtoItem:
    """One row: tensors without the batch dimension, the plain values of the other columns, and the batch's facts."""

    batch: TensorDictBase | None
    non_tensor_batch: dict[str, Any]
    meta_info: dict[str, Any]


@dataclass(eq=False, repr=False)
class DataProto:
    """B rows of tensor and object columns."""

    batch: Any = None  # a TensorDict; None in a batch without tensors. Typed so that columns read without a check
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch, self.meta_info = self.non_tensor_batch or {}, self.meta_info or {}  # None: there is none
        if isinstance(self.batch, dict):
            self.batch = DataProto.from_dict(self.batch).batch
        if self.batch is not None and self.batch.batch_dims != 1:
            raise ValueError(f"batch must have one batch dimension, (B,), not {tuple(self.batch.batch_size)}")
        self.non_tensor_batch = {name: object_column(values) for name, values in self.non_tensor_batch.items()}
        for name, column in self.non_tensor_batch.items():
            if len(column) != len(self):
                raise ValueError(f"column {name!r} has {len(column)} rows where the others have {len(self)}")

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, torch.Tensor] | None = None,
        non_tensors: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> Self:
        """From tensors of shape (B, ...) and lists or arrays of length B."""
        tensors = tensors or {}
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
                raise TypeError(f"tensor column {name!r} must be a tensor of shape (B, ...), not {_kind(tensor)}")
        sizes = {name: tensor.shape[0] for name, tensor in tensors.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"tensor columns differ in their number of rows: {sizes}")
        batch = TensorDict(dict(tensors), batch_size=[next(iter(sizes.values()))]) if tensors else None
        return cls(batch, dict(non_tensors or {}), dict(meta_info or {}))

    @classmethod
    def from_single_dict(cls, data: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None) -> Self:
        """From one dict: tensors become tensor columns, numpy arrays the other ones."""
        for name, value in data.items():
            if not isinstance(value, torch.Tensor | np.ndarray):
                raise TypeError(f"column {name!r} must be a tensor or a numpy array, not {_kind(value)}")
        tensors = {name: value for name, value in data.items() if isinstance(value, torch.Tensor)}
        return cls.from_dict(tensors, {k: v for k, v in data.items() if k not in tensors}, meta_info)

    @classmethod
    def from_tensordict(cls, source: TensorDictBase, meta_info: Mapping[str, Any] | None = None) -> Self:
        """From a TensorDict of batch size (B,): stacks of non-tensors become columns, single non-tensors meta_info."""
        tensors: dict[str, torch.Tensor] = {}
        columns: dict[str, np.ndarray] = {}
        facts = dict(meta_info or {})
        for name in source.keys():  # noqa: SIM118 (a TensorDict iterates over its rows)
            value = source.get(name)
            if isinstance(value, NonTensorStack):
                columns[name] = object_column(value.tolist())
            elif isinstance(value, NonTensorData):
                facts[name] = value.data
            else:
                tensors[name] = value
        batch = TensorDict(tensors, batch_size=source.batch_size) if tensors or not columns else None
        return cls(batch, columns, facts)

    def to_tensordict(self) -> TensorDict:
        """One TensorDict of batch size (B,) that holds everything; `from_tensordict` is its inverse."""
        names = [*self._tensors(), *self.non_tensor_batch, *self.meta_info]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice} are names of more than one kind; rename them before to_tensordict")
        whole = TensorDict(self._tensors(), batch_size=[len(self)])
        for name, column in self.non_tensor_batch.items():
            whole.set(name, NonTensorStack(*[NonTensorData(value) for value in column]))
        for name, value in self.meta_info.items():
            whole.set_non_tensor(name, value)
        return whole

    def __len__(self) -> int:
        """The number of rows, B; 0 where there is no column."""
        if self.batch is not None:
            return int(self.batch.batch_size[0])
        return len(next(iter(self.non_tensor_batch.values()), ()))

    def __repr__(self) -> str:
        tensors = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in self._tensors().items()]
        return (
            f"DataProto({len(self)} rows; tensors: {', '.join(tensors) or 'none'}; "
            f"others: {', '.join(self.non_tensor_batch) or 'none'}; meta: {', '.join(self.meta_info) or 'none'})"
        )

    @overload
    def __getitem__(self, item: int) -> DataProtoItem: ...
    @overload
    def __getitem__(self, item: slice | Rows) -> "DataProto": ...
    def __getitem__(self, item: int | slice | Rows) -> "DataProtoItem | DataProto":
        """A row number gives a DataProtoItem; a slice, a list of row numbers or a mask gives a DataProto."""
        if isinstance(item, slice):
            return self.slice(item.start, item.stop, item.step)
        if not isinstance(item, int | np.integer):
            return self.select_idxs(item)
        if not -len(self) <= item < len(self):
            raise IndexError(f"row {item} of a batch of {len(self)} rows")
        row = None if self.batch is None else self.batch[int(item)]
        return DataProtoItem(row, {k: column[item] for k, column in self.non_tensor_batch.items()}, self.meta_info)

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {} if self.batch is None else {name: self.batch[name] for name in self.batch.keys()}  # noqa: SIM118

    def has_columns(self) -> bool:
        """Whether there is any column; without one, B is 0 and says nothing."""
        return self.batch is not None or bool(self.non_tensor_batch)

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> "DataProto":
        """Only these columns and facts; None keeps all of a kind, an empty list none."""
        tensors = self._tensors() if batch_keys is None else _known(batch_keys, self._tensors(), "batch")
        columns = _pick(self.non_tensor_batch, non_tensor_batch_keys, "non_tensor_batch")
        facts = _pick(self.meta_info, meta_info_keys, "meta_info")
        return DataProto(None if self.batch is None else self.batch.select(*tensors), columns, facts)

    def pop(
        self,
        batch_keys: Iterable[str] = (),
        non_tensor_batch_keys: Iterable[str] = (),
        meta_info_keys: Iterable[str] = (),
    ) -> "DataProto":
        """Remove these columns and facts from this batch and give them as another; None of a kind means none of it."""
        popped = self.select(batch_keys or (), non_tensor_batch_keys or (), meta_info_keys or ())
        if tensors := popped._tensors():
            self.batch = self.batch.exclude(*tensors)
        else:
            popped.batch = None
        self.non_tensor_batch = {k: v for k, v in self.non_tensor_batch.items() if k not in popped.non_tensor_batch}
        self.meta_info = {k: v for k, v in self.meta_info.items() if k not in popped.meta_info}
        return popped

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> Self:
        """Rename tensor columns of this batch; gives the batch itself."""
        old = [old_keys] if isinstance(old_keys, str) else list(old_keys)
        new = [new_keys] if isinstance(new_keys, str) else list(new_keys)
        if len(old) != len(new):
            raise ValueError(f"rename needs as many new names as old ones, not {old} and {new}")
        tensors = self._tensors()
        names = dict(zip(_known(old, tensors, "batch"), new, strict=True))
        after = [names.get(name, name) for name in tensors]
        if len(set(after)) < len(after):
            raise ValueError(f"rename {old} to {new} gives two columns one name")
        if self.batch is not None:
            renamed = dict(zip(after, tensors.values(), strict=True))
            self.batch = TensorDict(renamed, batch_size=self.batch.batch_size)
        return self

    def union(self, *others: "DataProto") -> Self:
        """Add the columns and facts of `others` to this batch; gives the batch itself. What several have must be the
        same (NaN equals NaN); on a conflict nothing is changed."""
        batches: list[DataProto] = [self, *others]
        rows = [len(batch) for batch in batches if batch.has_columns()]
        if len(set(rows)) > 1:
            raise ValueError(f"union of {' with '.join(f'{count} rows' for count in rows)}")
        tensors, columns, facts = self._tensors(), self.non_tensor_batch, self.meta_info
        for other in others:
            _refuse_conflicts({**tensors, **columns}, {**other._tensors(), **other.non_tensor_batch}, "column")
            _refuse_conflicts(facts, other.meta_info, "meta_info")
            tensors, columns = {**tensors, **other._tensors()}, {**columns, **other.non_tensor_batch}
            facts = {**facts, **other.meta_info}
        if any(other.batch is not None for other in others):
            self.batch = TensorDict(tensors, batch_size=rows[:1])
        self.non_tensor_batch, self.meta_info = columns, facts
        return self

    def select_idxs(self, idxs: Rows) -> "DataProto":
        """The rows with these numbers, in this order, or the rows where a mask of length B is true."""
        rows = self._row_numbers(idxs)
        columns = {name: column[rows.numpy()] for name, column in self.non_tensor_batch.items()}
        return DataProto(None if self.batch is None else self.batch[rows], columns, dict(self.meta_info))

    def _row_numbers(self, idxs: Rows) -> torch.Tensor:
        rows = torch.as_tensor(idxs, device="cpu") if len(idxs) else torch.zeros(0, dtype=torch.int64)
        if rows.dtype == torch.bool:
            if rows.shape != (len(self),):
                raise ValueError(f"a mask of shape {tuple(rows.shape)} for {len(self)} rows")
            return rows.nonzero().flatten()
        if rows.ndim != 1 or rows.is_floating_point():
            raise TypeError(f"rows must be a flat list of numbers or a mask, not {rows.dtype} of {tuple(rows.shape)}")
        if len(rows) and not (-len(self) <= int(rows.min()) and int(rows.max()) < len(self)):
            raise IndexError(f"rows {int(rows.min())} to {int(rows.max())} of a batch of {len(self)} rows")
        return rows.to(torch.int64) % max(len(self), 1)  # negative numbers count from the end

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> "DataProto":
        """Rows start:end:step, as Python slices count; the tensors share memory with this batch."""
        rows = slice(start, end, step)
        if step is not None and step < 0:  # torch has no negative steps
            return self.select_idxs(range(len(self))[rows])
        columns = {name: column[rows] for name, column in self.non_tensor_batch.items()}
        return DataProto(None if self.batch is None else self.batch[rows], columns, dict(self.meta_info))

    def chunk(self, chunks: int, padding: bool = False) -> list["DataProto"]:
        """`chunks` equal parts in order; B must be divisible, or is made so by `pad_dataproto_to_divisor`."""
        if padding and chunks > 0:
            return pad_dataproto_to_divisor(self, chunks)[0].chunk(chunks)
        if chunks < 1 or len(self) % chunks:
            raise ValueError(f"{len(self)} rows do not divide into {chunks} chunks; set padding=True")
        size = len(self) // chunks
        return [self.slice(i * size, (i + 1) * size) for i in range(chunks)]

    def split(self, split_size: int) -> list["DataProto"]:
        """Parts of `split_size` rows in order; the last may be shorter."""
        if split_size < 1:
            raise ValueError(f"split_size must be at least 1, not {split_size}")
        return [self.slice(start, start + split_size) for start in range(0, len(self), split_size)]

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> "DataProto":
        """Every row n times: aabb when interleaved, abab when not."""
        rows = torch.arange(len(self))
        return self.select_idxs(rows.repeat_interleave(repeat_times) if interleave else rows.repeat(repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int] | torch.Tensor) -> "DataProto":
        """Row i repeat_times[i] times; 0 drops it."""
        times = torch.as_tensor(repeat_times, dtype=torch.int64)
        if times.shape != (len(self),) or (times < 0).any():
            raise ValueError(f"repeat_times must be one count for each of the {len(self)} rows, not {repeat_times}")
        return self.select_idxs(torch.arange(len(self)).repeat_interleave(times))

    def unfold_column_chunks(self, n_split: int, split_keys: Iterable[str] | None = None) -> "DataProto":
        """Every row n_split times; each gets its part of the columns in `split_keys`, (B, n_split x k, ...)."""
        whole = self.repeat(n_split)
        for name in _known(split_keys or (), self._tensors(), "batch"):
            column = self.batch[name]
            if column.ndim < 2 or column.shape[1] % n_split:
                raise ValueError(f"column {name!r} of shape {tuple(column.shape)} does not split into {n_split} parts")
            whole.batch[name] = column.reshape(len(whole), column.shape[1] // n_split, *column.shape[2:])
        return whole

    def reorder(self, indices: Rows) -> None:
        """Put this batch's rows into another order, in place."""
        other = self.select_idxs(indices)
        self.batch, self.non_tensor_batch = other.batch, other.non_tensor_batch

    def padding(self, padding_size: int, padding_candidate: str = "") -> None:
        """Append `padding_size` copies of the "first" row, or else of the last, in place."""
        if padding_size and not len(self):
            raise ValueError("an empty batch has no row to pad with")
        row = 0 if padding_candidate == "first" else len(self) - 1
        self.reorder([*range(len(self)), *[row] * padding_size])

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        shuffle: bool = False,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, bool] | None = None,
    ) -> Iterator["DataProto"]:
        """Mini-batches of this size, `epochs` times over all rows; a seeded shuffle always gives the same order.
        `dataloader_kwargs` is another way to say `{"shuffle": True}`."""
        shuffle = shuffle or (dataloader_kwargs or {}).get("shuffle", False)
        if mini_batch_size < 1 or len(self) % mini_batch_size:
            raise ValueError(f"{len(self)} rows do not divide into mini-batches of {mini_batch_size}")
        if shuffle and seed is None:
            raise ValueError("make_iterator(shuffle=True) needs a seed")
        generator = torch.Generator().manual_seed(seed or 0)

        def mini_batches() -> Iterator["DataProto"]:
            for _ in range(epochs):
                rows = torch.arange(len(self))
                if shuffle:
                    # A torch DataLoader draws one number (its workers' seed) before each epoch's order. Drawing it too
                    # gives the order that the same seed gives there.
                    torch.empty((), dtype=torch.int64).random_(generator=generator)
                    rows = torch.randperm(len(self), generator=generator)
                for part in rows.split(mini_batch_size):
                    yield self.select_idxs(part)

        return mini_batches()

    @staticmethod
    def concat(data: Sequence["DataProto"]) -> "DataProto":
        """All rows one after another. Facts are joined and must agree, save `metrics`: see `join_metrics`."""
        if not data:
            raise ValueError("concat of no batches")
        facts: dict[str, Any] = {}
        for one in data:
            rest = {name: value for name, value in one.meta_info.items() if name != "metrics"}
            _refuse_conflicts(facts, rest, "meta_info")
            facts.update(rest)
        if metrics := [one.meta_info["metrics"] for one in data if "metrics" in one.meta_info]:
            facts["metrics"] = join_metrics(metrics)
        tensors = {k: torch.cat(parts) for k, parts in _aligned([one._tensors() for one in data]).items()}
        columns = {k: np.concatenate(v) for k, v in _aligned([one.non_tensor_batch for one in data]).items()}
        return DataProto.from_dict(tensors, columns, facts)

    def to(self, device: str | torch.device) -> Self:
        """Move this batch's tensors to a device; gives the batch itself."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self

    def save_to_disk(self, path: str | Path) -> None:
        """Write one safetensors file, whole or not at all. Object columns and facts must have a JSON form: tuples,
        numpy arrays and dicts with other keys than strings come back as they were, numpy scalars as Python's."""
        rest = {
            "rows": len(self) if self.batch is not None else None,
            "batch": list(self._tensors()),  # in their order, which safetensors does not keep
            "non_tensor_batch": {k: _to_json(v, f"column {k!r}") for k, v in self.non_tensor_batch.items()},
            "meta_info": {k: _to_json(v, f"meta_info {k!r}") for k, v in self.meta_info.items()},
        }
        # Columns may share memory, which safetensors refuses: each gets its own.
        tensors = {k: v.detach().cpu().clone(memory_format=torch.contiguous_format) for k, v in self._tensors().items()}
        tensors[_REST] = torch.frombuffer(bytearray(json.dumps(rest).encode()), dtype=torch.uint8)
        _write_whole(Path(path).expanduser(), safetensors_bytes(tensors, metadata=_FORMAT))

    @classmethod
    def load_from_disk(cls, path: str | Path) -> Self:
        """Read what `save_to_disk` wrote; tensors come on the CPU."""
        path = Path(path).expanduser()
        try:
            with safe_open(path, framework="pt") as file:
                if file.metadata() != _FORMAT:
                    raise CheckpointError(f"{path} is not a batch written by DataProto.save_to_disk")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read the batch {path}: {error}; is it missing or truncated?") from error
        rest = json.loads(tensors.pop(_REST).numpy().tobytes())
        batch = None
        if rest["rows"] is not None:
            batch = TensorDict({name: tensors[name] for name in rest["batch"]}, batch_size=[rest["rows"]])
        columns = {name: _from_json(value) for name, value in rest["non_tensor_batch"].items()}
        return cls(batch, columns, {name: _from_json(value) for name, value in rest["meta_info"].items()})


def pad_dataproto_to_divisor(data: DataProto, size_divisor: int) -> tuple[DataProto, int]:
    """Append rows from the start, over and over, until B is divisible; gives the longer batch and how many were added,
    which whoever trains on it masks (the controller's dispatch does)."""
    pad_size = -len(data) % size_divisor
    if pad_size == 0:
        return data, 0
    return data.select_idxs(torch.arange(len(data) + pad_size) % len(data)), pad_size


def unpad_dataproto(data: DataProto, pad_size: int) -> DataProto:
    """Drop the last `pad_size` rows."""
    return data.slice(0, len(data) - pad_size) if pad_size else data


def fold_batch_dim(data: DataProto, new_batch_size: int) -> DataProto:
    """Columns (B, ...) to (new_batch_size, B / new_batch_size, ...): neighbouring rows become one."""
    if new_batch_size < 1 or len(data) % new_batch_size:
        raise ValueError(f"{len(data)} rows do not divide into {new_batch_size}")
    return _reshaped(data, 1, (new_batch_size, len(data) // new_batch_size))


def unfold_batch_dim(data: DataProto, batch_dims: int = 2) -> DataProto:
    """The first `batch_dims` dimensions of every column become rows, which undoes `fold_batch_dim`."""
    return _reshaped(data, batch_dims, (-1,))


def _reshaped(data: DataProto, dims: int, shape: tuple[int, ...]) -> DataProto:
    tensors = {name: column.reshape(*shape, *column.shape[dims:]) for name, column in data._tensors().items()}
    columns = {name: column.reshape(*shape, *column.shape[dims:]) for name, column in data.non_tensor_batch.items()}
    return DataProto.from_dict(tensors, columns, data.meta_info)


def join_metrics(metrics: Iterable[Mapping[str, Any] | Sequence[Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """Metrics of several workers or batches as one dict of lists; a value that is a list already is extended."""
    joined: dict[str, list[Any]] = {}
    for group in metrics:
        for one in [group] if isinstance(group, Mapping) else group:
            for name, value in one.items():
                joined.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    return joined


def _kind(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def object_column(values: Any) -> np.ndarray:
    """An object array with one entry for each row; a list of lists stays one list for each row."""
    if isinstance(values, np.ndarray) and values.ndim:
        return values.astype(object, copy=False)
    if not isinstance(values, list | tuple):
        raise TypeError(
            f"a non-tensor column must be a list or an array with an entry for each row, not {_kind(values)}"
        )
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def _known(names: Iterable[str], there: Iterable[str], where: str) -> list[str]:
    names, there = list(names), list(there)
    if missing := [name for name in names if name not in there]:
        raise KeyError(f"{where} has no {missing}; it has {there}")
    return names


def _pick(source: dict[str, Any], names: Iterable[str] | None, where: str) -> dict[str, Any]:
    return {name: source[name] for name in (source if names is None else _known(names, source, where))}


def _refuse_conflicts(mine: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> None:
    for name in mine.keys() & theirs.keys():
        if not _same(mine[name], theirs[name]):
            raise ValueError(f"{what} {name!r} is in both batches with different values")


def _same(a: Any, b: Any) -> bool:
    """Deep equality in which NaN equals NaN and dtypes count."""
    if a is b:
        return True
    if type(a) is not type(b) and any(isinstance(x, torch.Tensor | np.ndarray | list | tuple | dict) for x in (a, b)):
        return False
    if isinstance(a, torch.Tensor | np.ndarray) and (a.shape != b.shape or a.dtype != b.dtype):
        return False
    if isinstance(a, torch.Tensor):
        b = b.to(a.device)
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray):
        return all(map(_same, a.flat, b.flat))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b) or (a != a and b != b)


def _aligned(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns of several batches, by name; they must have the same names, dtypes and shapes after (B,)."""
    for number, part in enumerate(parts):
        if part.keys() != parts[0].keys():
            raise ValueError(f"batch {number} has columns {sorted(part)} where batch 0 has {sorted(parts[0])}")
        for name, column in part.items():
            first = parts[0][name]
            if column.shape[1:] != first.shape[1:] or column.dtype != first.dtype:
                raise ValueError(
                    f"column {name!r} is {column.dtype} {tuple(column.shape)} in batch {number} and {first.dtype} "
                    f"{tuple(first.shape)} in batch 0; bring both to one dtype and width first"
                )
    return {name: [part[name] for part in parts] for name in parts[0]}


def _write_whole(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise CheckpointError(
            f"cannot write the batch {path}: {error}; is the disk full or the folder read-only?"
        ) from error


def _to_json(value: Any, where: str) -> Any:
    """A JSON form from which `_from_json` makes the value again; what JSON lacks becomes {"$kind": ...}."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": _to_json(list(value), where)}
    if isinstance(value, np.ndarray):
        items = _to_json(value.flatten().tolist(), where)
        return {"$array": items, "dtype": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _to_json(item, f"{where}[{key!r}]") for key, item in value.items()}
        return {"$dict": _to_json([list(pair) for pair in value.items()], where)}
    raise DataError(f"{where} holds a {type(value).__name__}, which has no JSON form: drop it before saving the batch")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(_from_json(value["$tuple"]))
    if "$dict" in value:
        return {_from_json(key): _from_json(item) for key, item in value["$dict"]}
    if "$array" in value:
        return object_column(_from_json(value["$array"])).astype(value["dtype"]).reshape(value["shape"])
    return {key: _from_json(item) for key, item in value.items()}
