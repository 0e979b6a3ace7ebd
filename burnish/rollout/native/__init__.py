"""The native engine: continuous batching over a paged KV pool, on the trainer's weights; `engine.py` is the map."""
