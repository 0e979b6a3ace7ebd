"""The native engine: continuous batching over a paged KV pool, in the trainer's process, on the trainer's weights.

Read `engine.py` first; it says what the other files are for.
"""
