"""`*.fsdp_config`: sharding and offload of one model. Several processes share it by FSDP2; one holds it whole."""

from dataclasses import dataclass

from burnish.config.key import key
from burnish.config.model import DTYPE_SPELLINGS, DTYPES

SHARDING = "engine/sharding.py"
WORKER = "workers/model_worker.py"
RULE = "config/rules/models.py"
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
        "let FSDP2 keep weights, gradients and moments in host memory, and update them there",
        reader=SHARDING,
    )
    fsdp_size: int = key(-1, "processes that share one copy of the weights; -1: all", reader=WORKER, low=-1)
    reshard_after_forward: bool = key(
        True, "free a layer's gathered weights until the backward pass gathers them again", reader=SHARDING
    )
    forward_prefetch: bool = key(False, "gather the next layer's weights early", reader=SHARDING)
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
