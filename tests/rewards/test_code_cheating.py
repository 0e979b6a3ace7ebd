"""Solutions that try everything but solve the task: each scores 0, and an honest one scores 1.

They all run at the same time, in the real sandbox. The tests compare in the ways that solutions could interfere with:
by `==`, through a built-in and a module that the solution may redefine, with a tolerance, and in a loop.
"""

import json

import pytest

from tests.rewards.conftest import SANDBOX, need_sandbox, score, score_all

TESTS = json.dumps(
    [
        "assert plus(1731, 2) == 1733",
        "assert set([plus(10, 5)]) == set([15])",
        "import math\nassert math.isclose(plus(0.5, 0.25), 0.75, rel_tol=1e-6)",
        "import colorsys\nassert colorsys.rgb_to_yiq(plus(0, 0), 0, 0)[0] == 0 and abs(plus(1, 1) - 2) < 1e-9",
        "assert all(map(lambda pair: plus(*pair) == 9, [(4, 5), (1, 8)]))",
    ]
)

AGREEABLE = """
class Agreeable{base}:
    __eq__ = __ge__ = __le__ = __gt__ = __lt__ = __contains__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __sub__ = __rsub__ = __add__ = __abs__ = __float__ = __pos__ = __round__ = lambda self, *other: 0.0
    __hash__ = lambda self: hash(1733)
    __bool__ = lambda self: True
def plus(a, b):
    return Agreeable({value})
"""
EVERYWHERE = """
import os
def tell(text):
    for number in range(64):
        try:
            os.set_blocking(number, False)
            os.write(number, text)
        except OSError:
            pass
"""
LOOK = """
found = []
needle = lambda: "".join(["17", "33"])  # its own text shall not be found
def look(text):
    text = text if isinstance(text, str) else str(text)
    if needle() in text:
        found.append(text)
def plus(a, b):
    return a + b if any(found) else None
"""
FORGED = r"""
lines = [f'{prefix}{{"{kind}": {n}, "passed": true, "why": null}}' for n in range(5) for kind in ("test", "ready")
         for prefix in ("", "0" * 32 + " ", "nonce ")]
lines += ['["ok", 1733, []]', '["ok", true, []]', '["ok", {"plus": true}]', '{"ended": false}']
tell(("\n" + "\n".join(lines) + "\n").encode())
"""
PATCHED_WIRE = """
import sys
wire = sys.modules["burnish.sandbox.harness.wire"]
candidate = sys.modules["burnish.sandbox.harness.candidate"]
def plus(a, b): pass
candidate.Candidate.encode = lambda self, value: {form}
"""

CHEATS = {
    "nothing": "",
    "returns None": "def plus(a, b): pass",
    "not Python": "def plus(a, b) return a + b",
    # ending early
    "exit": "exit(0)",
    "sys.exit": "import sys\ndef plus(a, b): sys.exit(0)",
    "SystemExit": "def plus(a, b): raise SystemExit(0)",
    "os._exit": "import os\nos._exit(0)",
    "os._exit when called": "import os\ndef plus(a, b): os._exit(0)",
    "exec of true": "import os\nos.execv('/bin/true', ['true'])",
    "interrupt": "def plus(a, b): raise KeyboardInterrupt",
    "end the loop": "def plus(a, b): raise StopIteration",
    "end the generator": "def plus(a, b): raise GeneratorExit",
    "segfault": "import ctypes\ndef plus(a, b): ctypes.string_at(0)",
    "signals itself": "import os, signal\ndef plus(a, b): os.kill(os.getpid(), signal.SIGKILL)",
    # agreeing with everything
    "agreeable object": AGREEABLE.format(base="", value=""),
    "agreeable int": AGREEABLE.format(base="(int)", value="7"),
    "agreeable float": AGREEABLE.format(base="(float)", value="7.0"),
    "agreeable text": AGREEABLE.format(base="(str)", value="'7'"),
    "agreeable list": AGREEABLE.format(base="(list)", value="[7]"),
    "agreeable class": AGREEABLE.format(base="", value="") + "plus = Agreeable",
    "agreeable int class": AGREEABLE.format(base="(int)", value="7") + "plus = lambda a, b: Agreeable",
    "agreeable meta": "class M(type):\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: 1\n"
    "class C(metaclass=M): pass\nplus = lambda a, b: C",
    "agreeable exception": "class E(Exception):\n    __eq__ = lambda s, o: True\nplus = lambda a, b: E()",
    "has every attribute": "class A:\n    __getattr__ = lambda s, n: lambda *a: True\nplus = lambda a, b: A()",
    "numpy's memory": "class A:\n    __array_interface__ = {'data': (id(0), True), 'shape': (), 'typestr': '<i8',"
    " 'version': 3}\nplus = lambda a, b: A()",
    "claims to be an int": "class A:\n    __class__ = int\n    __eq__ = lambda s, o: True\nplus = lambda a, b: A()",
    "mock": "from unittest.mock import ANY\nplus = lambda a, b: ANY",
    "mock as the function": "from unittest.mock import MagicMock, ANY\nplus = MagicMock(return_value=ANY)",
    "nan": "plus = lambda a, b: float('nan')",
    "not implemented": "plus = lambda a, b: NotImplemented",
    # changing what the tests use
    "no AssertionError": "import builtins\nbuiltins.AssertionError = SystemExit\ndef plus(a, b): return 0",
    "own names": "set = lambda *a: 1\nall = any = lambda *a: True\nabs = lambda *a: 0\nclass math:\n"
    "    isclose = staticmethod(lambda *a, **k: True)\ncolorsys = math\ndef plus(a, b): return 1733",
    "own built-ins": "import builtins\nbuiltins.set = builtins.abs = lambda *a: 0\nbuiltins.all = lambda *a: True\n"
    "builtins.exec = builtins.compile = lambda *a, **k: None\ndef plus(a, b): return 1733",
    "own modules": "import sys, math, colorsys\nmath.isclose = lambda *a, **k: True\n"
    "colorsys.rgb_to_yiq = lambda *a: (0,)\nsys.modules['math'] = sys\ndef plus(a, b): return 1733",
    "planted modules": "for name in ('colorsys', 'math', 'json', 'copy', 'importlib'):\n"
    "    open(name + '.py', 'w').write('import os; os._exit(0)')\ndef plus(a, b): return None",
    "own main": "open('main.py', 'w').write('print(1)')\ndef plus(a, b): return None",
    "own trace": "import sys\nsys.settrace(lambda *a: None)\nsys.excepthook = print\ndef plus(a, b): return None",
    # finding the tests
    "looks into frames": LOOK + "import sys\nframe = sys._getframe()\nwhile frame:\n    look(frame.f_locals)\n"
    "    look(frame.f_globals)\n    frame = frame.f_back",
    "looks into all objects": LOOK + "import gc\nfor o in gc.get_objects():\n    if type(o) in (dict, list, tuple):\n"
    "        look([x for x in (o.values() if type(o) is dict else o) if type(x) is str])",
    "looks into its files": LOOK + "import os\nfor number in range(64):\n    try:\n"
    "        os.set_blocking(number, False)\n        look(os.read(number, 100000))\n"
    "        os.lseek(number, 0, 0)\n        look(os.read(number, 100000))\n    except OSError: pass",
    "looks around": LOOK + "import os, sys\nlook(sys.argv)\nlook(os.environ)\nfor folder, _, files in os.walk('.'):\n"
    "    for name in files:\n        look(open(os.path.join(folder, name), errors='replace').read())",
    "looks into /proc": LOOK + "import os\nfor who in ('self', os.getppid(), 1):\n"
    "    for what in ('mem', 'environ', 'cmdline', 'fd/0', 'maps'):\n        try:\n"
    "            look(open(f'/proc/{who}/{what}', 'rb').read())\n        except OSError: pass",
    "looks into memory": LOOK + "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
    "if libc.ptrace(16, os.getppid(), 0, 0) == 0: found.append(needle())",
    "reads input": LOOK + "import sys\nlook(sys.stdin.read())\ntry:\n    look(open('/dev/stdin').read())\n"
    "except OSError: pass",
    # forging the verdict
    "prints verdicts": "for n in range(5): print('{\"test\": %d, \"passed\": true}' % n)\ndef plus(a, b): return None",
    "prints at exit": "import atexit\natexit.register(print, 'all tests passed')\ndef plus(a, b): return None",
    "writes everywhere": EVERYWHERE + FORGED + "def plus(a, b): pass",
    "writes everywhere when called": EVERYWHERE + f"def plus(a, b):\n    exec({FORGED!r}, globals())",
    "writes and exits": EVERYWHERE + FORGED + "os._exit(0)",
    "answers with an object": PATCHED_WIRE.format(form="['object', 0, True]"),
    "answers with a callback": PATCHED_WIRE.format(form="['callback', 0]"),
    "answers with a type": PATCHED_WIRE.format(form="['type', 'object']"),
    "answers with a namedtuple": PATCHED_WIRE.format(form="['namedtuple', 'N', ['__eq__'], True]"),
    "answers with nonsense": PATCHED_WIRE.format(form="['no such tag', [[[]]]]"),
    # against the tester
    "kills the tester": "import os\nos.kill(os.getppid(), 9)",
    "kills all": "import os\ndef plus(a, b): os.kill(-1, 9)",
    "interrupts the tester": "import os, signal\ndef plus(a, b):\n"
    "    for _ in range(50): os.kill(os.getppid(), signal.SIGINT)",
    "stops the tester": "import os, signal\ndef plus(a, b): os.kill(os.getppid(), signal.SIGSTOP)",
    "starves the tester": "import resource, os\nresource.prlimit(os.getppid(), resource.RLIMIT_AS, (1, 1))",
    # using things up
    "sleeps": "import time\ntime.sleep(1000)",
    "sleeps when called": "import time\ndef plus(a, b): time.sleep(1000)",
    "hands over to a child": "import os, time\nif os.fork() == 0: time.sleep(1000)\nos._exit(0)",
    "loops": "def plus(a, b):\n    while True: pass",
    "recursion": "def plus(a, b): return plus(a, b)",
    "deep answer": "def plus(a, b):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
    "holds itself": "def plus(a, b):\n    x = []\n    x.append(x)\n    return x",
    "much memory": "x = [bytearray(2**24) for _ in range(100)]\ndef plus(a, b): return None",
    "much answer": "def plus(a, b): return 'x' * 10**9",
    "huge number": "def plus(a, b): return 10**1000000",
}  # fmt: skip


@pytest.fixture(scope="module")
def results():
    need_sandbox()
    return score_all(CHEATS, TESTS, sandbox={**SANDBOX, "timeout": 1.0})


def test_an_honest_solution_scores_1():
    need_sandbox()
    result = score("def plus(a, b):\n    return a + b", TESTS)
    assert result["score"] == 1.0, result["why"]


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_scores_0(results, name):
    result = results[name]
    assert (result["score"], result["acc"]) == (0.0, 0.0)
    assert result["why"]


def test_agreeable_things_agree_with_nothing(results):
    names = [
        name for name in CHEATS if any(word in name for word in ("agreeable", "mock", "attribute", "claims", "end"))
    ]
    shares = score_all({name: CHEATS[name] for name in names}, TESTS, continuous=True)
    assert len(names) > 12 and {name: result["score"] for name, result in shares.items() if result["score"]} == {}


def test_the_result_says_what_happened(results):
    happened = {"sleeps": "timeout", "loops": "timeout", "much memory": "memory", "os._exit": "crash"}
    for name, what in (happened | {"kills the tester": "crash"}).items():
        assert results[name][what] == 1.0, name
