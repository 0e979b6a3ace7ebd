"""A model's folder in a checkpoint, as its worker writes and reads it.

It holds the model with its tokenizer, and the parts of its training state that `checkpoint.save_contents` names.
`capture` copies all of it into host memory at once; `save`, then called from any thread, writes that copy while
training continues. Without a capture before it, `save` writes the model as it is.

Several processes that share a model call all of it together, with the same folder, which all of them must see: each
writes its own files, and the first those that there is one of.
"""

import contextlib
import os
import socket
import tempfile
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.config.actor import PARTS, CheckpointConfig
from burnish.engine.hf_files import Write
from burnish.engine.state import Snapshot
from burnish.engine.trainable import Trainable
from burnish.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ModelFolder:
    """Saves and loads one `Trainable` and its tokenizer; all parts of it, unless `config` says otherwise."""

    def __init__(
        self, trainable: Trainable, tokenizer: "PreTrainedTokenizerBase", config: CheckpointConfig | None = None
    ):
        self.trainable, self.tokenizer = trainable, tokenizer
        self.save_contents = config.save_contents if config else PARTS
        self.load_contents = config.load_contents if config else PARTS
        self._captured: Snapshot | None = None

    def capture(self) -> None:
        """Copy what the next `save` writes."""
        self._captured = self.trainable.capture(self.save_contents)
        if self._writes_tokenizer:
            _ = self._write_tokenizer  # made here: a tokenizer is not to be used by two threads at a time

    def save(self, folder: Path) -> None:
        """Write what was captured, or else the model as it is."""
        captured, self._captured = self._captured, None
        if not folder.parent.is_dir():
            raise CheckpointError(
                f"cannot write {folder}: {folder.parent}, which the run created, does not exist on "
                f"{socket.gethostname()}. Set trainer.default_local_dir to a folder on storage that all machines of "
                "the run share"
            )
        if captured is None:
            self.trainable.save(folder, self.save_contents)
        else:
            captured.write(folder)
        if self._writes_tokenizer:
            self._write_tokenizer(folder)
        if self.trainable.mesh is not None:
            _sync_files(folder)

    def load(self, folder: Path) -> None:
        """Resume from a folder that `save` wrote; a CheckpointError says what does not fit."""
        self.trainable.load(folder, self.load_contents)

    @property
    def _writes_tokenizer(self) -> bool:
        return self.trainable.mesh is None or self.trainable.mesh.rank == 0

    @cached_property
    def _write_tokenizer(self) -> Write:
        """Tokenizers do not change while a model trains, so their files are made once."""
        return written_now(self.tokenizer.save_pretrained)


def _sync_files(folder: Path) -> None:
    """Bring what this machine has written to the disk: the controller, on another one, can only do so for its own.

    What goes while this looks is a file that another process was writing under a name for the time: it syncs its own.
    """
    for path in (*(path for path in folder.rglob("*") if path.is_file()), folder):
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def written_now(write: Write) -> Write:
    """Call `write`; returns a function that writes the same files into any other folder, whenever it is called."""
    try:
        with tempfile.TemporaryDirectory(prefix="burnish-") as place:
            write(Path(place))
            found = [path for path in Path(place).rglob("*") if path.is_file()]
            files = {path.relative_to(place): path.read_bytes() for path in found}
    except Exception as error:
        if not isinstance(error, OSError) and type(error) is not Exception:  # tokenizers has no error type
            raise
        where = tempfile.tempdir or "of this machine"  # where there is none at all, the error names those tried
        raise CheckpointError(
            f"cannot write the tokenizer's files to the temporary folder {where}: {error}. Free space there, or name "
            "another folder in the environment variable TMPDIR, then run the same command again"
        ) from error

    def write_again(folder: Path) -> None:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    return write_again
