"""Rules between keys, one subject per file: each fills derived defaults of its subject and refuses what cannot work.

A rule takes the configuration and a `Given` (what was set, what the algorithm needs); it changes the configuration in
place, says what it decided through `given.say`, and raises `ConfigError` with the keys, their values and the remedy.
"""
