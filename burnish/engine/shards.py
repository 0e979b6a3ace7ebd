"""Tensors by name in safetensors files: all in one, or in several of which each holds some rows of them.

Of several processes each writes a file with its own rows; its head gives, for each tensor, where its rows start and how
many the whole has, and by `save` its checkpoint. What has no dimensions is in the first file alone. Nothing in a head
is trusted. torch.distributed.checkpoint is not used: its index is a pickle, and writing with it takes collectives,
which would have to wait for training where a checkpoint is written in the background.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from burnish.engine.sharding import Slice
from burnish.errors import CheckpointError
from burnish.models.folder import shard_names

HEAD = "burnish"  # the one entry of a file's head that is ours: several come in any order, and files would differ


def head(tensors: Mapping[str, Tensor], held: Mapping[str, Slice], save: str) -> dict[str, str]:
    rows = {name: [held[name].start, held[name].shape[0]] for name, tensor in tensors.items() if tensor.dim()}
    return {HEAD: json.dumps({"save": save, "rows": rows})}


@dataclass(frozen=True)
class _Piece:
    """The rows of a tensor that one file has, from `start` up to `stop` of `whole`."""

    path: Path
    file: Any  # safe_open
    start: int
    stop: int
    whole: tuple[int, ...]
    dtype: torch.dtype


class StoredTensors:
    """The tensors of `name` in a folder, in `count` files of one `save`; CheckpointError where they do not add up."""

    def __init__(self, folder: Path, name: str, count: int = 1, save: str | None = None):
        self.name, self.path = name, folder / name
        self._pieces: dict[str, list[_Piece]] = {}
        for file_name in shard_names(name, count):
            for tensor, piece in _pieces(folder / file_name, save).items():
                self._pieces.setdefault(tensor, []).append(piece)
        for tensor, pieces in self._pieces.items():
            pieces.sort(key=lambda piece: (piece.start, piece.stop))
            self._check_rows(tensor, pieces)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: pieces[0].whole for name, pieces in self._pieces.items()}

    def dtype(self, name: str) -> torch.dtype:
        """The type of a tensor; where files differ, one that is not float32."""
        found = [piece.dtype for piece in self._pieces[name]]
        return next((dtype for dtype in found if dtype != torch.float32), torch.float32)

    def read(self, name: str, held: Slice, out: Tensor) -> None:
        """Fill `out` with the rows that are `held` of a tensor; no other rows are read."""
        for piece in self._pieces[name]:
            start, stop = max(piece.start, held.start), min(piece.stop, held.stop)
            with reading(piece.path):
                if not piece.whole:
                    out.copy_(piece.file.get_tensor(name))
                elif start < stop:
                    rows = piece.file.get_slice(name)[start - piece.start : stop - piece.start]
                    out[start - held.start : stop - held.start].copy_(rows)

    def _check_rows(self, name: str, pieces: list[_Piece]) -> None:
        first, reached = pieces[0], 0
        if not first.whole and len(pieces) > 1:
            raise CheckpointError(f"{name} is in {first.path} and again in {pieces[1].path}; copy the checkpoint again")
        for piece in pieces if first.whole else ():
            if piece.whole != first.whole:
                raise CheckpointError(
                    f"{piece.path} is damaged: {name} is a part of {piece.whole} there, of {first.whole} in "
                    f"{first.path.name}"
                )
            if piece.start < reached:
                raise CheckpointError(
                    f"{piece.path} is damaged: it has rows of {name} from {piece.start} on, and another file has those "
                    f"up to {reached}"
                )
            if piece.start > reached:
                break
            reached = piece.stop
        if first.whole and reached < first.whole[0]:
            raise CheckpointError(
                f"checkpoint {first.path.parent} is incomplete: no file has the rows of {name} from {reached} on "
                f"({self.name} in parts); copy it again"
            )


def _pieces(path: Path, save: str | None) -> dict[str, _Piece]:
    """What a file has, by tensor; with `save` it is one of several."""
    with reading(path):
        file: Any = safe_open(path, framework="pt")
    rows = None if save is None else _rows(path, file.metadata(), save)
    found = {}
    for name in file.keys():  # noqa: SIM118 - a safetensors file is no dict
        part = file.get_slice(name)
        shape = tuple(part.get_shape())
        dtype = (part[:0] if shape else file.get_tensor(name)).dtype
        start, count = 0, shape[0] if shape else 0  # where its rows start, and how many there are in all
        if rows is not None and shape:
            place = rows.get(name)
            if not isinstance(place, list) or [type(number) for number in place] != [int, int]:
                raise CheckpointError(f"{path} is damaged: its head does not say which rows of {name} it has")
            start, count = place
        stop, whole = start + (shape[0] if shape else 0), (count, *shape[1:]) if shape else ()
        if not 0 <= start <= stop <= count:
            raise CheckpointError(f"{path} is damaged: rows {start} to {stop} of {name}, which has {count}")
        found[name] = _Piece(path, file, start, stop, whole, dtype)
    return found


def _rows(path: Path, metadata: Mapping[str, str] | None, save: str) -> dict[str, Any]:
    try:
        said = json.loads((metadata or {})[HEAD])
        rows: dict[str, Any] = dict(said["rows"])
        theirs = said["save"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: its head does not say which rows it has") from error
    if theirs != save:
        raise CheckpointError(
            f"{path} belongs to another checkpoint than the other files of {path.parent}: they are of different runs "
            "or steps. Copy the checkpoint again"
        )
    return rows


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """CheckpointError where a file of tensors is missing or cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {path.parent} is incomplete: {path.name} is missing") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"checkpoint file {path} is truncated or damaged: {error}") from error
