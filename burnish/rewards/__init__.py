"""Rewards: from a finished response to a score on its last token. Only managers/ imports torch.

contract.py     what crosses the boundaries: ScoreRequest, ScoreResult, FunctionSpec, and what a score may be
scores/         one built-in scorer per file; equivalence/ and code_*.py are what some of them share
routing.py      which scorer a data source has, its options, and whether a row holds what it reads
function.py     loads and checks a user's function or class, and calls it
process.py      the child process that runs them
pool.py         several of them behind `pool.submit(request)`
scoring.py      what a run uses: built from the configuration, scores one finished trajectory
failures.py     the failure policy: which samples a step drops, and when it stops
reference.py    does a row's own answer pass its own scorer? (`burnish data check`)
managers/       put scores on tokens and print examples
"""
