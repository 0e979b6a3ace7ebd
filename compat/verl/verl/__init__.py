"""`import verl`, answered by burnish, so that files written for verl 0.4 to 0.9 run unchanged (docs/from-verl.md).

Every module here has the names and signatures of verl's and hands the work to burnish. Importing the package imports no
torch; `_coverage.py` says what is not here.
"""

import sys
from typing import Any

from burnish import __version__ as _burnish
from verl import _coverage

_coverage.refuse_to_shadow()
sys.meta_path.insert(0, _coverage.Covered())
_coverage.announce()

__version__ = f"0.9.0+burnish.{_burnish}"


def __getattr__(name: str) -> Any:
    if name in ("DataProto", "DataProtoItem"):
        from verl import protocol

        return getattr(protocol, name)
    raise AttributeError(_coverage.absent(f"verl.{name}"))
