"""Data: files to rows, rows to prompts in order, prompts to batches.

files.py       parquet, json and jsonl to rows and back; what their columns hold
sources.py     where a dataset's records are: files, a folder, the hub
chat.py        messages to token ids; the plain template; truncation
dataset.py     the rows of a run, checked before training starts, and batches of them; users' dataset classes
order.py       which row comes when: a pure function of (seed, position); mixing, curriculum, users' samplers
augment.py     rows that are proposed while training, until they are drawn
examples.py    examples of SFT (a loss mask) and of reward models (pairs), and batches of them
check.py       one pass over a file: what is in it, what is wrong; report.py: the findings, as text and JSON
show.py        which rows a user means, and a row as a person reads it
tasks/         the tasks of `burnish data make`
"""
