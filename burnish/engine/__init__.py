"""The train engine: what it takes to run and update one HF module.

packing.py    rows of a batch -> sequences without padding, and results back to (B, R)
batching.py   a batch -> mini-batches of whole groups -> micro-batches that fit in memory
forward.py    log-probs, entropy and values of packed sequences
optim.py      optimiser, learning-rate schedule, gradient clipping
trainable.py  `Trainable`: a module with its optimiser: infer, update, save, load
state.py      the files a `Trainable` leaves and how they are checked on the way back
seeding.py    the seed, and deterministic algorithms where they are asked for
flops.py      work per token and the peaks that MFU is measured against
"""
