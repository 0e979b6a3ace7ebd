"""`burnish dashboard`: a local page over run folders, while runs go on and afterwards. It writes nothing.

`folders.py` finds runs and opens their files, `metrics.py` holds their metrics as columns, `samples.py` finds
trajectories by byte offsets, `settings.py` compares configurations, `server.py` has the routes. `page/` is what the
browser gets: HTML, CSS and JavaScript as they are, without a build step.
"""
