"""A rollout engine as a newcomer would add one: this folder, and a line in the table (`test_new_engine.py`)."""
