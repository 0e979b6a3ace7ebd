"""`*.model`: the Hugging Face model folder that actor, reference and critic start from, and how it is loaded."""

from dataclasses import dataclass
from typing import Any

from burnish.config.key import key

DTYPES = ("auto", "float32", "bfloat16", "float16")
DTYPE_SPELLINGS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float": "float32"}
LORA = "LoRA adapters"


@dataclass
class ModelConfig:
    """One model: where it lies and how to load it."""

    path: str = key(
        None, "model folder, a global_step_N of ours, a hub id, or hdfs://…", reader="models/loading.py", path=True
    )
    tokenizer_path: str | None = key(None, "tokenizer; null: the model's", reader="models/loading.py", path=True)
    trust_remote_code: bool = key(False, "run Python code that comes with the model", reader="models/loading.py")
    external_lib: str | None = key(None, "module imported before the model is loaded", reader="models/loading.py")
    override_config: dict[str, Any] = key({}, "values that replace those of config.json", reader="models/loading.py")
    dtype: str = key(
        "auto",
        "type of the weights; auto: float32",
        reader="models/loading.py",
        choices=DTYPES,
        spellings=DTYPE_SPELLINGS,
    )
    attn_implementation: str = key(
        "auto",
        "attention of transformers; auto: its own choice",
        reader="models/loading.py",
        choices=("auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"),
    )
    use_remove_padding: bool = key(
        True, "train without padding", inert="a pass is padded to its longest sequence; padding is masked"
    )
    enable_gradient_checkpointing: bool = key(
        True, "recompute activations in the backward pass to save memory", reader="models/loading.py"
    )
    enable_activation_offload: bool = key(
        False, "keep activations in host memory", later="moving activations to host memory"
    )
    lora_rank: int = key(0, "rank of LoRA adapters; 0: train all weights", low=0, later=LORA)
    lora_alpha: float = key(16, "scale of LoRA adapters", later=LORA)
    target_modules: list[str] = key(["all-linear"], "modules that get an adapter", later=LORA)
    exclude_modules: list[str] | None = key(None, "modules that get no adapter", later=LORA)
    lora_adapter_path: str | None = key(None, "trained adapter to start from", later=LORA, path=True)
    use_fused_kernels: bool | str = key(
        "auto",
        "fused log-probability kernels; auto: where there are any",
        choices=("auto", True, False),
        now=(False,),
        later="fused log-probability kernels",
    )
    use_liger: bool = key(False, "Liger kernels inside the model", later="Liger kernels")
