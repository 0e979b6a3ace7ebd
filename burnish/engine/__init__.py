"""The train engine: what it takes to run and update one HF module, `Trainable` (trainable.py).

A batch is cut (batching.py, balance.py), packed (packing.py) and run (forward.py); gradients become a step (optim.py).
Over several processes: mesh.py, sharding.py. On disk: state.py, shards.py, and dump.py for a NaN/Inf update.
"""
