"""Refuses to be installed over verl itself, whose files would be overwritten."""

import sysconfig
from importlib.metadata import distributions

from setuptools import setup

# The environment that pip installs into; this file itself runs in an isolated one.
for found in distributions(name="verl", path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]):
    raise SystemExit(f"verl {found.version} is installed here: `pip uninstall verl` first, or use another environment")

setup()
