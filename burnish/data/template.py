"""A chat template under a budget: it is a program of whoever made the model folder, and gets no more than its share.

`ChatTemplate` compiles what transformers compiles, with its filters, functions and extensions, so it writes the same
text. Work is counted in steps, not in time, so a render that fits its budget fits on every machine. What costs:

- each list of statements (a body of a loop, branch, macro) when it runs: its nodes
- each value that an operator, filter, test or method reads, or that is written: its characters and elements, at any
  depth; of lists that are added or sliced, the elements alone. What may multiply values (`*`, `replace`, `join`, widths
  of formats, …) costs the product, before it happens
"""

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set, Sized, ValuesView
from contextlib import suppress
from functools import lru_cache, wraps
from string import Formatter
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

LONGEST = 2**18  # characters of a template; those of known models have up to 2**15
BUDGET = 10**7  # steps of a render: about a second, and some tens of megabytes
PER_CHARACTER = 256  # steps more for each character of the messages and tools
READINGS = 4  # … and for each message: a template may read all that it has written again after each
NODE = 8  # steps of a node that is evaluated, or of an element; those of a character are 1
DEEPEST = 100  # levels of lists and objects in a value
BITS = 2**14  # of an integer
CHARGE, CHARGE_LENGTH = "charge", "charge_length"  # filters; a template may use them, and only pays more

# Filters, functions and methods by what they cost, if not the product of the first value and the sum of the others.
OTHERS = frozenset(  # only their arguments: these do not go through the value
    "get items keys values default d length first last cycle next Namespace Cycler Joiner dict safe_range".split()
)
SUM = frozenset(
    "startswith endswith split partition find index count removeprefix removesuffix in eq == equalto ne != lt < "
    "lessthan gt > greaterthan le <= ge >= lower upper".split()
)
EACH = frozenset("map select reject selectattr rejectattr".split())  # the arguments, for each element
SQUARE = frozenset(["sum", "striptags", "urlize", "wordwrap", "pprint"])
CONSTANT_TESTS = frozenset(
    "defined undefined none boolean true false integer float string mapping number sequence iterable callable sameas "
    "odd even divisibleby filter test escaped".split()
)
READ = {nodes.Output: "nodes", nodes.Concat: "nodes", nodes.Compare: "expr", nodes.Operand: "expr", nodes.Pair: "key"}
STAR = re.compile(r"%(\([^)]*\))?[-+ #0\d.]*\*")  # a width among the values


class BadTemplate(Exception):
    """The template cannot be compiled, or asks for more than its budget: no fault of the messages."""


class ChatTemplate:
    """A compiled template; `variables` are those that it reads and does not set."""

    def __init__(self, source: str):
        if len(source) > LONGEST:
            raise BadTemplate(f"it has {len(source)} characters, and {LONGEST} are allowed")
        self._environment = _Metered()
        try:
            tree = self._environment.parse(source)
            self.variables = frozenset(find_undeclared_variables(tree))
            tree = _Charges().visit(tree)
            tree.set_environment(self._environment)
            self._template = self._environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise BadTemplate(f"line {error.lineno}: {error.message}") from error
        except (SyntaxError, RecursionError, MemoryError, ValueError) as error:  # of the Python code that it becomes
            raise BadTemplate(
                f"it is nested too deeply, or has a number of too many digits ({str(error) or type(error).__name__})"
            ) from error
        self._lock = threading.Lock()

    def render(self, messages: Sequence[Any], variables: Mapping[str, Any]) -> str:
        messages = list(messages)
        try:
            read = weight([messages, variables.get("tools")])
        except BadTemplate as error:
            raise ValueError(f"a message or tool has more than {DEEPEST} levels") from error
        with self._lock:
            self._environment.left = BUDGET + (PER_CHARACTER + READINGS * len(messages)) * read
            try:
                return self._template.render(variables, messages=messages)
            except RecursionError as error:
                raise BadTemplate("it calls itself without an end") from error
            finally:
                self._environment.left = 0


chat_template = lru_cache(maxsize=32)(ChatTemplate)


def weight(value: Any, most: float = float("inf")) -> int:
    """Characters and elements of a value, at any depth; BadTemplate over `most`, where counting ends."""
    if isinstance(value, str | bytes):
        return 1 + len(value)
    total, level = 0, [value]
    for _ in range(DEEPEST):
        deeper: list[Any] = []
        for item in level:
            inner: Collection[Any] = ()
            total += NODE
            if isinstance(item, str | bytes):
                total += len(item)
            elif isinstance(item, list | tuple):
                inner = item
            elif isinstance(item, dict | Mapping):
                inner = item.items()
            elif isinstance(item, range):
                total += NODE * len(item)
            elif isinstance(item, int):
                total += item.bit_length() // 3
            elif isinstance(item, Namespace):
                inner = item._Namespace__attrs.items()
            elif isinstance(item, Set | ValuesView):  # of a view of keys or items, too
                inner = item
            if inner:
                if total + NODE * (len(deeper) + len(inner)) > most:
                    raise _exhausted()
                deeper.extend(inner)
        if total > most:
            raise _exhausted()
        if not deeper:
            return total
        level = deeper
    raise BadTemplate(f"it makes a value of more than {DEEPEST} levels")


class _Metered(ImmutableSandboxedEnvironment):
    """transformers' environment for chat templates. Without a budget, as while compiling, nothing is evaluated."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        from transformers.utils.chat_template_utils import _compile_jinja_template

        theirs = _compile_jinja_template("").environment
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=map(type, theirs.extensions.values()))
        self.left = 0
        self.filters = {name: self._metered(name, function) for name, function in theirs.filters.items()}
        tests = {name: self._metered(name, test) for name, test in self.tests.items() if name not in CONSTANT_TESTS}
        self.tests = {**self.tests, **tests}
        self.filters |= {CHARGE: self._charge, CHARGE_LENGTH: self._charge_length}
        self.globals = {name: value for name, value in theirs.globals.items() if name != "lipsum"}

    def spend(self, cost: int) -> None:
        self.left -= abs(cost)
        if not self.left >= 0:  # a template may spend NaN
            raise _exhausted()

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(function, Macro | LoopContext | BlockReference):  # their bodies are charged
            return super().call(context, function, *args, **kwargs)
        name = getattr(function, "__name__", "")
        of = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # str.format is wrapped
        given = [_held(value) for value in args]
        if name in ("format", "format_map") and isinstance(of, str):
            with suppress(ValueError):  # which the call raises
                for _, _, spec, _ in Formatter().parse(of):
                    if spec and "{" in spec:
                        raise BadTemplate("it formats with a width among the values")
                    self.spend(_widths(spec or ""))
        self._spend_on(name, of, [*given, *kwargs.values()])
        return super().call(context, function, *given, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = [side for side in (left, right) if isinstance(side, int)]
        if any(number.bit_length() > BITS for number in numbers):
            raise BadTemplate(f"it calculates with an integer of more than {BITS} bits")
        if operator == "%" and isinstance(left, str | bytes):
            self._spend_on("format", left, [right])
            self._spend_on_widths(left)
        elif operator == "+":
            self.spend(self._length(left) + self._length(right))
        else:
            one, other = self._weight(left), self._weight(right)
            if operator in ("*", "**"):
                repeats = operator == "**" or len(numbers) == 1
                self.spend(one * other * (max(map(abs, numbers), default=1) if repeats else 1))
            else:
                self.spend(one + other)
        return super().call_binop(context, operator, left, right)

    def _metered(self, name: str, function: Any) -> Callable[..., Any]:
        skipped = hasattr(function, "jinja_pass_arg")  # jinja's own first argument

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            own, given = args[:skipped], list(args[skipped:])
            if name not in OTHERS:
                given = [_held(value) for value in given]
            self._spend_on(name, given[0], [*given[1:], *kwargs.values()])
            if name == "format":
                self._spend_on_widths(given[0])
            found = function(*own, *given, **kwargs)
            return self._counted(found) if isinstance(found, Iterator) else found

        return run

    def _spend_on(self, name: str, value: Any, others: Iterable[Any]) -> None:
        rest = sum(abs(other) if type(other) is int else self._weight(other) for other in others)
        if name in OTHERS:
            self.spend(NODE + rest)
        elif name in EACH:
            self.spend(NODE * (1 + (len(value) if isinstance(value, Sized) else 0)) * (1 + rest))
        elif name in SQUARE:
            self.spend(self._weight(value) ** 2 * (1 + rest))
        else:
            one = self._weight(value)
            self.spend(NODE + one + rest if name in SUM else NODE + one * (1 + rest))

    def _spend_on_widths(self, text: Any) -> None:
        if STAR.search(str(text)):
            raise BadTemplate("it formats with a width among the values")
        self.spend(_widths(str(text)))

    def _weight(self, value: Any) -> int:
        return len(value) if type(value) is str else weight(value, self.left)

    def _length(self, value: Any) -> int:
        return NODE * (1 + len(value)) if isinstance(value, list | tuple) else self._weight(value)

    def _charge(self, value: Any, cost: int = 0) -> Any:
        self.spend(cost if value is None else cost + self._weight(value))
        return value

    def _charge_length(self, value: Any) -> Any:
        self.spend(self._length(value))
        return value

    def _counted(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.spend(NODE + self._weight(item))
            yield item


class _Charges(NodeTransformer):
    """Writes the charges into a parsed template."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        for name in ("body", "else_"):
            body = getattr(node, name, None)
            if isinstance(body, list) and (body or name == "body"):
                body.insert(0, nodes.ExprStmt(_charge(nodes.Const(None), _size(body)), lineno=node.lineno))
        if field := READ.get(type(node)):
            value = getattr(node, field)
            setattr(node, field, [_charge(part) for part in value] if isinstance(value, list) else _charge(value))
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_charge(nodes.Const(True), _size([node.test])), node.test, lineno=node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _charge(node.node, name=CHARGE_LENGTH)
        else:
            node.arg = _charge(node.arg)
        return node


def _charge(part: nodes.Expr, cost: int = 0, name: str = CHARGE) -> nodes.Expr:
    if not cost and isinstance(part, nodes.Const | nodes.TemplateData):
        return part
    args: list[nodes.Expr] = [nodes.Const(cost)] if cost else []
    return nodes.Filter(part, name, args, [], None, None, lineno=part.lineno)


def _size(body: Iterable[nodes.Node]) -> int:
    """Steps of statements without the bodies inside them."""
    total, waiting = 0, list(body)
    while waiting:
        node = waiting.pop()
        total += NODE + (len(node.data) if isinstance(node, nodes.TemplateData) else 0)
        waiting += node.iter_child_nodes(exclude=("body", "else_"))
    return total


def _held(value: Any) -> Any:
    """The items of an iterator as a list, which has a weight."""
    return list(value) if isinstance(value, Iterator) and not isinstance(value, LoopContext) else value


def _widths(text: str) -> int:
    return sum(int(digits[:9]) for digits in re.findall(r"\d+", text))


def _exhausted() -> BadTemplate:
    return BadTemplate(f"it takes more than {BUDGET:,} steps and {PER_CHARACTER} and more for each character given")
