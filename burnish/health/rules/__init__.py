"""One file a rule, or a few that watch the same numbers; each module has its `RULES`."""
