"""burnish from Python: a script or a notebook trains, generates, evaluates and serves by one call each.

train.py    `train` and `sft`: rows, a reward function and keys in, a `Run` out
answer.py   `generate`, `evaluate` and `serve`
run.py      `Run`: metrics, samples, plot and model of a run folder
table.py    rows and metrics that show themselves, in a terminal and in a notebook
data.py     rows as Python has them → a file that the commands read
reward.py   a function, several, a scorer's name or a path → keys of `custom_reward_function`
call.py     what is around each call: errors of one line, nothing left behind, the process never ended

Each call makes keys, and runs what the command of its name runs. `burnish/__init__.py` has the names lazily.
"""
