"""A rollout engine as a newcomer would add one: a folder and a line in a table (`tests/trainer/test_new_engine.py`)."""
