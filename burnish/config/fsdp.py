"""`*.fsdp_config`: sharding and offload of one model. This version holds each model whole in one process."""

from dataclasses import dataclass

from burnish.config.key import key
from burnish.config.model import DTYPE_SPELLINGS, DTYPES

ONE_PROCESS = "one process holds the whole model; there is nothing to shard"
RULE = "config/rules/offload.py"
NOT_TRAINED = {"optimizer_offload": RULE}  # readers, of a model without an optimiser


@dataclass
class FSDPConfig:
    """How a model is spread over devices and host memory."""

    param_offload: bool = key(False, "keep weights in host memory between uses", reader=RULE)
    optimizer_offload: bool = key(
        False, "keep masters and moments in host memory between updates", reader="engine/offload.py"
    )
    offload_policy: bool = key(
        False,
        "let FSDP2 keep weights in host memory throughout",
        later="FSDP2's own offload",
        instead="Use param_offload or optimizer_offload",
    )
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
