"""The train engine: what it takes to run and update one HF module.

packing.py    rows of a batch -> sequences without padding, and results back to (B, R)
batching.py   a batch -> mini-batches of whole groups -> micro-batches that fit in memory
balance.py    sequences -> parts of even cost, within a budget of tokens
forward.py    `Forward`: log-probs, entropy, values and scores of packed sequences
optim.py      optimiser, learning-rate schedule, gradient clipping
trainable.py  `Trainable`: a module with its optimiser: infer, forward_backward, optim_step, save, load
mesh.py       `Mesh`: the processes that hold one model together, and whose rows are whose; None for one process
sharding.py   a module whose weights are spread over a mesh by FSDP2, and how they are gathered again
offload.py    activations, optimiser state and weights that wait in host memory
state.py      the files a `Trainable` leaves and how they are checked on the way back
shards.py     tensors in one file, or in several of which each holds some rows; reads any rows of them
hf_files.py   the Hugging Face folder or the adapter among these files
dump.py       a NaN/Inf update, written for `burnish replay`
diagnosis.py  where such a value comes from: weights, gradients, modules, tokens
seeding.py    the seed, and deterministic algorithms where they are asked for
flops.py      work per token and the peaks that MFU is measured against
"""
