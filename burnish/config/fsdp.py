"""`*.fsdp_config`: sharding and offload of one model. Several processes share it by FSDP2; one holds it whole."""

from dataclasses import dataclass
from typing import Any

from burnish.config.key import Keys, key
from burnish.config.model import dtype_key

WORKER = "workers/model_worker.py"
RULE = "config/rules/models.py"
NOT_TRAINED = {"optimizer_offload": RULE}  # readers, of a model without an optimiser


@dataclass
class FSDPConfig(Keys, reader="engine/sharding.py"):
    """How a model is spread over devices and host memory."""

    param_offload: bool = key(False, "keep weights in host memory between uses", RULE)
    optimizer_offload: bool = key(
        False, "keep master weights and optimiser state in host memory between updates", "engine/offload.py"
    )
    offload_policy: bool = key(
        False, "FSDP2's CPU offload: weights, gradients and optimiser state in host memory, updated there"
    )
    fsdp_size: int = key(-1, "processes that share one copy of the weights; -1: all", WORKER, low=-1)
    reshard_after_forward: bool = key(
        True, "free a layer's gathered weights until the backward pass gathers them again"
    )
    forward_prefetch: bool = key(False, "gather the next layer's weights before they are needed")
    wrap_policy: dict[str, Any] = key({}, "which layers are sharded", inert="every decoder layer is sharded separately")
    model_dtype: str = dtype_key(
        "type of the master weights", now=("float32",), later="master weights of another type than float32"
    )
