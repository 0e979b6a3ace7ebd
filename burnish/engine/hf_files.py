"""The files of a `Trainable` that transformers or PEFT reads: its Hugging Face folder, or with LoRA the adapter.

`model_writer` returns what writes them, now or later and in any thread. The weights of a sharded model are first
gathered, bucket by bucket, in host memory of the first process, which alone writes: in the type that the model computes
in, so the files are those that one process would have written.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from burnish.engine.sharding import computes_in, local, reshard, slices_of, whole_buckets
from burnish.models.loading import quiet_transformers
from burnish.models.lora import adapter_writer, has_adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from burnish.engine.trainable import Trainable

Write = Callable[[Path], object]  # fills a folder


class Copies:
    """Host copies of tensors. Of one that comes twice (tied weights, a weight that is its own master) there is one."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if place not in self._made or not tensor.data_ptr():
            self._made[place] = tensor.detach().to("cpu", copy=True).contiguous()
        return self._made[place]


def in_place(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def model_writer(trainable: "Trainable", hosted: Callable[[Tensor], Tensor], *, copy: bool) -> Write | None:
    """Writes the Hugging Face folder, or the adapter's; of several processes the first does."""
    module, mesh = trainable.module, trainable.mesh
    if mesh is None:
        return _writer(module, hosted, copy=copy)
    reshard(module)
    parameters = trainable.parameters if has_adapter(module) else dict(module.named_parameters())
    slices = slices_of(parameters, mesh)
    mine = {name: local(parameter) for name, parameter in parameters.items()}
    whole: dict[int, Tensor] = {}  # by the parameter's id
    for bucket in whole_buckets(mine, slices, mesh, dtype=computes_in(module)):
        if mesh.rank == 0:
            whole |= {id(parameters[name]): in_place(tensor) for name, tensor in bucket.items()}
    if mesh.rank:
        return None
    write = _writer(module, lambda tensor: whole[id(tensor)] if id(tensor) in whole else hosted(tensor), copy=True)
    dtype = str(computes_in(module)).removeprefix("torch.")

    def write_in_type(folder: Path) -> None:
        """Let config.json name the type of the weights next to it; that of a sharded module is the masters'."""
        write(folder)
        file = folder / "config.json"  # an adapter has none, unless there is a head
        if file.is_file():
            config = json.loads(file.read_text()) | {"dtype": dtype}
            file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")  # as transformers writes it

    return write_in_type


def _writer(module: "PreTrainedModel", hosted: Callable[[Tensor], Tensor], *, copy: bool) -> Write:
    if has_adapter(module):
        return adapter_writer(module, hosted)
    weights = {name: hosted(t) for name, t in module.state_dict(keep_vars=True).items()} if copy else None
    return partial(_save_pretrained, module, weights)


def _save_pretrained(module: "PreTrainedModel", weights: dict[str, Tensor] | None, folder: Path) -> None:
    with quiet_transformers():  # its progress bar would break the console's live table
        module.save_pretrained(folder, state_dict=weights)
