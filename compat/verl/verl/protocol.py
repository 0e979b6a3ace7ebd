"""burnish's DataProto: `from verl import DataProto` is the same class."""

from burnish.protocol import DataProto, DataProtoItem, pad_dataproto_to_divisor, unpad_dataproto

__all__ = ["DataProto", "DataProtoItem", "pad_dataproto_to_divisor", "unpad_dataproto"]
