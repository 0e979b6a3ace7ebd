"""Whether two model folders hold the same model, told from a glance at the weights. Imports no torch.

A run keeps the fingerprint of the model it started from, because its reference policy is that model: a resumed run
that finds another one there would be another run.
"""

import hashlib
import os
from pathlib import Path

from burnish.models.folder import resolve_path, safetensors_files

GLANCE = 2**20  # bytes read at either end of a file


def fingerprint(path: str | Path) -> str:
    """A hash of the weight files' names, sizes and ends; the same wherever the folder lies."""
    folder = resolve_path(path)
    digest = hashlib.sha256()
    for file in sorted([*safetensors_files(folder), *folder.glob("pytorch_model*.bin")]):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(GLANCE))
            stream.seek(max(size - GLANCE, 0), os.SEEK_SET)
            digest.update(stream.read(GLANCE))
    return digest.hexdigest()
