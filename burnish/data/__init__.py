"""Data: files to rows, rows to prompts in order, prompts to batches.

files.py     parquet, json and jsonl to rows and back
sources.py   where a dataset's records are: files, a folder, the hub
row.py       one row of a file to one row of the prompt stream: the standard fields
chat.py      messages to token ids; the plain template; truncation
dataset.py   the rows of a run, checked before training starts
order.py     which row comes when: a pure function of (seed, position); mixing and curriculum
augment.py   rows that are proposed while training, until they are drawn
custom.py    users' own dataset and sampler classes
collate.py   rows to a DataProto
sft.py       supervised examples with a loss mask, packed
shares.py    shares of whole numbers, for mixing
table.py     a file's rows in batches; column_types.py: what its columns hold
check.py     one pass over a file: what is in it, what is wrong; report.py, report_text.py: what was found, and as text
select.py    which rows a user means; show.py: a row as a person reads it
tasks/       makers of data
"""
