"""`*.model`: the Hugging Face model folder that actor, reference and critic start from, and how it is loaded."""

from dataclasses import dataclass
from typing import Any

from burnish.config.key import Keys, key

DTYPES = ("auto", "float32", "bfloat16", "float16")
DTYPE_SPELLINGS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32"}
ADAPTER, BACKBONES = "models/lora.py", "models/backbones.py"
AUTO = ("auto", True, False)
ATTENTION = ("auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def dtype_key(doc: str, reader: str = "", **about: Any) -> Any:
    return key("auto", doc, reader, choices=DTYPES, spellings=DTYPE_SPELLINGS, **about)


@dataclass
class ModelConfig(Keys, reader="models/loading.py"):
    """One model: where it is and how to load it."""

    path: str = key(None, "model folder, a global_step_N folder of a run, a hub id, or hdfs://…", path=True)
    tokenizer_path: str | None = key(None, "tokenizer; null: the model's", path=True)
    trust_remote_code: bool = key(False, "run Python code that comes with the model")
    external_lib: str | list[str] | None = key(
        None, "modules or .py files imported before keys are checked; what they register can be named"
    )
    override_config: dict[str, Any] = key({}, "values that replace those of config.json")
    dtype: str = dtype_key(
        "type of the weights; auto: bfloat16 on a GPU, float32 on a CPU. Master weights are always float32"
    )
    attn_implementation: str = key(
        "auto", "attention implementation of transformers; auto: let transformers choose", choices=ATTENTION
    )
    use_remove_padding: bool = key(True, "pack sequences without padding, where the model supports it", BACKBONES)
    enable_gradient_checkpointing: bool | str = key(
        "auto", "recompute activations in the backward pass; auto: if they do not fit into memory", choices=AUTO
    )
    enable_activation_offload: bool = key(
        False, "keep activations in host memory until the backward pass needs them", "engine/trainable.py"
    )
    lora_rank: int = key(0, "rank of LoRA adapters; 0: train all weights", ADAPTER, low=0)
    lora_alpha: float = key(16, "scale of LoRA adapters: their output is multiplied by alpha / rank", ADAPTER)
    target_modules: list[str] = key(["all-linear"], "linear layers that get an adapter, by name", ADAPTER)
    exclude_modules: list[str] | None = key(None, "modules that get no adapter", ADAPTER)
    lora_adapter_path: str | None = key(
        None, "trained adapter to continue from; its own rank is used", "models/adapters.py", path=True
    )
    use_fused_kernels: bool | str = key(
        "auto", "fused kernels for the model and its output layer; auto: for supported models", BACKBONES, choices=AUTO
    )
    use_liger: bool = key(False, "Liger kernels inside the model", later="Liger kernels")

    @property
    def has_lora(self) -> bool:
        """Whether an adapter trains in place of the weights."""
        return self.lora_rank > 0 or self.lora_adapter_path is not None
