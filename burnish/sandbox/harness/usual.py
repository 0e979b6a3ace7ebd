"""Names that solutions to call tests use without importing them: `List`, `deque`, `lru_cache`, `math`, …

The judges of such tasks import them beforehand, and the tasks show signatures that need it. Only what a solution uses
and does not define is imported. Runs inside the sandbox, in the candidate's process.
"""

from __future__ import annotations

import builtins
import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Where a name is looked up, in this order; the modules themselves are names too.
MODULES = (
    "typing", "collections", "math", "itertools", "functools", "heapq", "bisect", "string", "re", "operator", "random",
    "copy", "sys",
)  # fmt: skip


def usual_names(source: str) -> dict[str, Any]:
    """The usual names among those that `source` reads and never binds."""
    import ast  # needed here alone, and not small

    used: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
    return {name: found for name in used - bound - set(dir(builtins)) if (found := _find(name)) is not None}


def _find(name: str) -> Any:
    if name in MODULES:
        return importlib.import_module(name)
    for module in map(importlib.import_module, MODULES):
        if name in getattr(module, "__all__", dir(module)) and not name.startswith("_"):
            return getattr(module, name)
    return None
