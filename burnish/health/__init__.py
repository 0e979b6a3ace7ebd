"""Rules over the metrics of a run: each watches some numbers, and reports what goes wrong, with evidence and a remedy.

`rule.py` is the contract, `rules/` has one short file for each, `history.py` is what a rule may look at, and `watch.py`
asks them after each step of a run and sums up. The same rules read a finished run folder.
"""
