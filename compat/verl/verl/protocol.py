"""burnish's DataProto: `from verl import DataProto` is the same class."""

from burnish.protocol import (
    DataProto,
    DataProtoItem,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    unpad_dataproto,
)

__all__ = [
    "DataProto",
    "DataProtoItem",
    "fold_batch_dim",
    "pad_dataproto_to_divisor",
    "unfold_batch_dim",
    "unpad_dataproto",
]
