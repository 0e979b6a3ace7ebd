"""Where the names that a row's test programs use come from: the solution, Python, or the tests themselves.

It is decided from the tests alone, so that a solution cannot bring its own `set`, `math` or `isclose` for the tests to
use. `names_in(programs)` gives what the harness needs for a row:

- built-in names are Python's, a standard module that tests use as `sys.getsizeof(…)` without importing it is that
  module, and a few standard types (`Counter`, `Decimal`, …) are those types;
- every other name that the tests read and do not import or define is the solution's;
- where there is no other name, the function under test has the name of a built-in (`assert sum(10, 15) == 6`): it is
  the one name that the tests call. Where they call several, it is ambiguous, and none is taken.

No torch.
"""

import ast
import builtins
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

_BUILT_IN = frozenset(dir(builtins))
_STANDARD = {
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"), "collections"),
    **dict.fromkeys(("Any", "Callable", "Dict", "List", "Optional", "Set", "Tuple", "Union"), "typing"),
    "Decimal": "decimal",
    "Fraction": "fractions",
    "isclose": "math",
}
_USUAL_SHORT = {"np": "numpy", "pd": "pandas"}


@dataclass(frozen=True)
class Names:
    """`take` from the solution, `give` as [module, attribute or None], and `modules` that the tests import."""

    take: list[str]
    give: dict[str, tuple[str, str | None]]
    modules: list[str]


@dataclass
class _UsedNames:
    read: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    bare: set[str] = field(default_factory=set)  # read otherwise than as `name.attribute`
    bound: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)  # by import, def or class: the test's own from its first use
    modules: set[str] = field(default_factory=set)


def names_in(programs: Sequence[str]) -> Names:
    """SyntaxError where a program is not Python; ValueError where nothing in them can be the solution's."""
    found = _UsedNames()
    for program in programs:
        _look(ast.parse(program), found)
    read = {name for name in found.read if not name.startswith("__")} - found.defined
    give: dict[str, tuple[str, str | None]] = {}
    for name in read - found.bound:
        module = _USUAL_SHORT.get(name, name)
        if name not in found.bare and (module in sys.stdlib_module_names or name in _USUAL_SHORT):
            give[name] = (module, None)
        elif name in _STANDARD:
            give[name] = (_STANDARD[name], name)
    take = read - give.keys() - _BUILT_IN
    if not take - found.bound:  # they are all Python's
        called = found.called & (read - found.bound)
        take |= called - _BUILT_IN or (called if len(called) == 1 else set())
    if not take - found.bound:
        raise ValueError("they call nothing of the solution's")
    modules = found.modules | {module for module, _ in give.values()}
    return Names(sorted(take), {name: give[name] for name in sorted(give.keys() - take)}, sorted(modules))


def _look(tree: ast.AST, found: _UsedNames) -> None:
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                found.read.add(name)
                if id(node) not in bases:
                    found.bare.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                found.bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.defined.add(name)
            case ast.Import(names=aliases):
                found.modules.update(alias.name for alias in aliases)
                found.defined.update((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases):
                found.modules.update({module} if module else ())
                found.defined.update(alias.asname or alias.name for alias in aliases)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.called.add(node.func.id)
