"""`*.fsdp_config`: sharding and offload of one model. This version holds each model whole in one process."""

from dataclasses import dataclass

from burnish.config.key import key
from burnish.config.model import DTYPE_SPELLINGS, DTYPES

ONE_PROCESS = "one process holds the whole model; there is nothing to shard"
OFFLOAD = "moving weights or optimiser state to host memory"


@dataclass
class FSDPConfig:
    """How a model is spread over devices and host memory."""

    param_offload: bool = key(False, "keep weights in host memory between uses", later=OFFLOAD)
    optimizer_offload: bool = key(False, "keep optimiser state in host memory between uses", later=OFFLOAD)
    offload_policy: bool = key(False, "let FSDP2 keep weights in host memory throughout", later=OFFLOAD)
    fsdp_size: int = key(-1, "devices that share one copy; -1: all", inert=ONE_PROCESS)
    reshard_after_forward: bool = key(True, "free gathered weights after the forward pass", inert=ONE_PROCESS)
    forward_prefetch: bool = key(False, "gather the next layer's weights early", inert=ONE_PROCESS)
    model_dtype: str = key(
        "auto",
        "type of the master weights",
        choices=DTYPES,
        spellings=DTYPE_SPELLINGS,
        now=("float32",),
        later="master weights of another type than float32",
    )
    mixed_precision: dict | None = key(
        None, "types of parameters, gradients and buffers", later="a choice of mixed precision"
    )
