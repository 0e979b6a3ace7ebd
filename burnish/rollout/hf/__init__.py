"""The `hf` engine: the trainer's own transformers module, batched and KV-cached. Simple, and the reference in tests."""
