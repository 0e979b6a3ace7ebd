"""Which answers are the same mathematics, that no text is evaluated, and that the helper process is kept in hand."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from burnish.errors import WorkerError
from burnish.rewards.equivalence import LONGEST, algebra, equivalent, exact
from burnish.rewards.equivalence.exact import read
from burnish.rewards.equivalence.latex import tidy
from tests.processes import is_running, until
from tests.rewards.conftest import cases, quick

HARD = r"10^{10^{10^{10}}}"  # sympy would compute it


pytestmark = pytest.mark.usefixtures("no_algebra_process_left")


def pairs(table: str) -> list[tuple[str, str]]:
    """`answer ~~ truth`, several on a line with ;; between them."""
    return [tuple(case.split(" ~~ ")) for case in cases(table)]


SAME = pairs(r"""
    \frac12 ~~ 0.5  ;;  \frac12 ~~ 1/2  ;;  \dfrac{3}{4} ~~ \tfrac34  ;;  \frac{-3}{4} ~~ -3/4
    1\frac{1}{2} ~~ \frac32  ;;  1 1/2 ~~ 1.5  ;;  5\frac32 ~~ 7.5  ;;  0.1\overline{6} ~~ \frac16
    1,000 ~~ 1000  ;;  1{,}000 ~~ 1000  ;;  1,\!000,\!000 ~~ 10^6  ;;  1\,000 ~~ 1000  ;;  1 000 ~~ 1000
    −7 ~~ -7  ;;  +7 ~~ 7  ;;  7. ~~ 7  ;;  $7$ ~~ 7  ;;  \(7\) ~~ 7  ;;  **7** ~~ 7  ;;  {7} ~~ 7  ;;  07 ~~ 7
    \$15 ~~ 15  ;;  15\text{ dollars} ~~ 15  ;;  15 \text{ cm}^2 ~~ 15  ;;  12 square units ~~ 12
    15\mathrm{cm} ~~ 15\text{ centimeters}  ;;  90^\circ ~~ 90  ;;  90^{\circ} ~~ 90 degrees  ;;  50\% ~~ 50
    50\% ~~ 0.5  ;;  0.5 ~~ 50\%  ;;  50 percent ~~ 50\%  ;;  x = 5 ~~ 5  ;;  5 ~~ x=5  ;;  a_n = 2n ~~ 2n
    \angle ABC = 30^\circ ~~ 30  ;;  K=8 ~~ k = 8  ;;  x>3 ~~ 3<x  ;;  (1, 2) ~~ \left(1,2\right)
    (\frac12, 3) ~~ (0.5,3)  ;;  \langle 1,2\rangle ~~ (1,2)  ;;  5, 7 ~~ 7,5  ;;  5 \text{ or } 7 ~~ 5,7
    5 and 7 ~~ 7, 5  ;;  \{7,5\} ~~ 5,7  ;;  \pm 3 ~~ -3,3  ;;  x=\pm 3 ~~ 3,-3  ;;  2\pm\sqrt3 ~~ 2-\sqrt3,2+\sqrt3
    x=1,y=2 ~~ 1,2  ;;  100,200 ~~ 100,200  ;;  (2,3)\cup(0,1) ~~ (0,1) \cup (2,3)  ;;  1<x\le 2 ~~ (1,2]
    x \in [1,2] ~~ [1,2]  ;;  x<3 ~~ (-\infty,3)
    \begin{pmatrix}1\\2\end{pmatrix} ~~ \begin{bmatrix} 1 \\ \frac{4}{2} \end{bmatrix}
    3+4i ~~ 4i+3  ;;  (1+i)^2 ~~ 2i  ;;  \mathrm{i} ~~ i
    \sqrt\frac12 ~~ \frac{\sqrt2}{2}  ;;  2^\frac12 ~~ \sqrt2  ;;  \frac\sqrt32 ~~ \frac{\sqrt3}{2}
    \sqrt{8} ~~ 2\sqrt2  ;;  \frac{2}{\sqrt5-1} ~~ \frac{1+\sqrt5}{2}  ;;  \sqrt{\frac{1}{2}} ~~ \frac{\sqrt2}{2}
    0.333333 ~~ \frac13  ;;  3.141593 ~~ \pi  ;;  2^{10} ~~ 1024  ;;  10^{-3} ~~ 0.001
    \text{Evelyn} ~~ Evelyn  ;;  \text{east} ~~ East  ;;  \text{(B)} ~~ B  ;;  (B) ~~ \text{B}
    \mbox{four} ~~ 4  ;;  3:4 ~~ \frac34  ;;  3 : 4 ~~ 3:4  ;;  8\!:\!34\text{ p.m.} ~~ 8:34\text{ PM}
    1010_2 ~~ 1010_{2}  ;;  \begin{pmatrix} 1 & \phantom -1 \end{pmatrix} ~~ \begin{pmatrix} 1 & 1 \end{pmatrix}
    56% ~~ 0.56=56\%  ;;  5\text{m} ~~ 5  ;;  5 \mathrm{s} ~~ 5  ;;  3\mathrm{i} ~~ 3i  ;;  20^\circ\text{C} ~~ 20
    20^\circ C ~~ 20  ;;  \overline{AB} ~~ AB
    5\text{ million} ~~ 5{,}000{,}000  ;;  \$2.5 million ~~ 2500000  ;;  2\text{ dozen} ~~ 24
    3\text{ thousand} ~~ 3000
    5\text{ hundredths} ~~ 0.05  ;;  \frac23\approx0.6 ~~ \frac23\approx0.67  ;;  (x,y)=(1,2) ~~ (1,2)  ;;  6:8 ~~ 3:4
    \text{5 cm} ~~ 5  ;;  \text{12 apples} ~~ 12  ;;  9.8 m/s^2 ~~ 9.8\text{ m/s}^2  ;;  9.8 m/s^2 ~~ 9.8
    3\text{ square cm} ~~ 3\text{ cm}^2  ;;  30\text{ mph} ~~ 30\text{ miles per hour}  ;;  5\text{ m} ~~ 5m
    12\  ~~ 12  ;;  1.5e3 ~~ 1500  ;;  +\infty ~~ \infty  ;;  \text{north-east} ~~ north-east  ;;  -37_8 ~~ -37_{8}
    56\% ~~ 0.56=56\%
    \sqrt{72}+\sqrt{50}-\sqrt{999983^2}+\sqrt{\frac{1}{12}} ~~ 11\sqrt2-999983+\frac{\sqrt3}{6}
    $\left( 3,\ \dfrac 12 \right)$. ~~ (3,\frac12)  ;;  5\, ~~ 5
""")

ONE_WAY = pairs(r"""
    m+n=7 ~~ 7  ;;  5=x ~~ 5  ;;  2+3=5 ~~ 5  ;;  \text{Area}=12 ~~ 12  ;;  Area = 12 ~~ 12  ;;  [ABC]=12 ~~ 12
    \frac13 \approx 0.333 ~~ \frac13  ;;  x=\frac13 \approx 0.333 ~~ \frac13  ;;  x\approx 3 ~~ 3
    \pi\approx 3.14 ~~ \pi  ;;  \textbf{(D) } 12 ~~ D  ;;  A: 5 ~~ A  ;;  (B) 12 ~~ \text{(B)}
    5 m ~~ 5  ;;  5 s ~~ 5
""")

DIFFERENT = pairs(r"""
    5 ~~ 6  ;;  0.33 ~~ \frac13  ;;  \pi ~~ 3.14159  ;;  6.28 ~~ 2\pi  ;;  0.0000001 ~~ 0.0000002  ;;  1 2 ~~ 12
    (1,2) ~~ (2,1)  ;;  (1,2) ~~ [1,2]  ;;  (1,2) ~~ \{1,2\}  ;;  (1,2) ~~ 1,2  ;;  1,2 ~~ (1,2)  ;;  (0,1] ~~ 0,1
    1,2,3 ~~ 1,2  ;;  1,1,2 ~~ 1,2,2  ;;  1, 234 ~~ 1234  ;;  [0,\infty) ~~ (0,\infty)  ;;  -1,3 ~~ -1,3,3
    5\text{ cm} ~~ 5\text{ m}  ;;  20\text{ miles} ~~ 20\%  ;;  2d ~~ 2  ;;  3c ~~ 3
    8:34\text{ a.m.} ~~ 8:34\text{ p.m.}  ;;  0 ~~ x+y+z=0  ;;  x=5 ~~ y=5  ;;  x>3 ~~ x>4  ;;  x>3 ~~ x\ge 3
    x<3 ~~ -x<-3  ;;  y=2x ~~ y=3x  ;;  x>5 ~~ 5  ;;  \text{west} ~~ East  ;;  \text{A, B} ~~ \text{B, A}
    CBAD ~~ ABCD  ;;  \text{one, two} ~~ 1  ;;  R^2-r^2 ~~ 0  ;;  x ~~ y  ;;  x^2 ~~ x  ;;  \sqrt2 ~~ \sqrt3
    1010_2 ~~ 1010  ;;  12_{16} ~~ 12_{15}
    \begin{pmatrix}1\\2\end{pmatrix} ~~ \begin{pmatrix}2\\1\end{pmatrix}  ;;  5 ~~ \begin{pmatrix}1\\2\end{pmatrix}
    答案 6 ~~ 6  ;;  x=1,y=2 ~~ 2,1  ;;  \frac{1}{0} ~~ \frac{2}{0}  ;;  AB=4, CD=9 ~~ AB=9,CD=4
    1=2 ~~ 3=5  ;;  \overline{z} ~~ z
    3\mathbf{i}+2\mathbf{j} ~~ 3i+2  ;;  30^\circ C+1 ~~ 31  ;;  xyz ~~ x-yz  ;;  abcd ~~ ab-cd  ;;  -a-b-c ~~ a-b-c
    PQ ~~ P-Q  ;;  xy-zw ~~ xyzw  ;;  \triangle ABC ~~ \triangle ACB  ;;  f'(x)=2 ~~ f(x)=2  ;;  -37_9 ~~ -37_8
    5\text{ million} ~~ 5  ;;  5\text{ dozen} ~~ 5  ;;  5\text{ hundredths} ~~ 5  ;;  5\text{ or 6} ~~ 5
    5\text{, 6, 7, 8} ~~ 5  ;;  5\text{ is wrong} ~~ 5  ;;  5\text{ to } ~~ 5  ;;  x+y=0 ~~ 0  ;;  x^2=4 ~~ 4
    2x=10 ~~ 10  ;;  3\text{ cm}^2 ~~ 3\text{ cm}^3  ;;  4\text{ m/s} ~~ 4\text{ km/h}  ;;  9.8 m/s^2 ~~ 9.8 m/s
    \frac{\infty}{\infty} ~~ 1  ;;  \infty-\infty ~~ 0  ;;  \infty ~~ -\infty  ;;  6:8 ~~ 3:5  ;;  6:08 ~~ 3:04
    A: B ~~ A  ;;  (A)(B) ~~ A  ;;  5 m ~~ 6  ;;  x\approx 3 ~~ 4
""")
# The truth sets the measure.
DIFFERENT_ONE_WAY = [("7", "m+n=7"), (r"\frac13\approx 0.5", "0.5"), ("", "0"), ("$ $", "x")]
EQUAL = pairs(r"""
    \sin 2x ~~ 2\sin x\cos x ;; \log_2 8 ~~ 3 ;; \sqrt[3]{16} ~~ 2\cdot 2^{1/3} ;; 5!\text{ ways} ~~ 120
    (-\infty,1)\cup(1,\infty) ~~ x\ne 1 ;; |x|<3 ~~ (-3,3) ;; 30p\sqrt p ~~ 30p^{3/2} ;; -cd+ab ~~ ab-cd
    \frac15\begin{pmatrix}1\\2\end{pmatrix} ~~ \begin{pmatrix}1/5\\2/5\end{pmatrix} ;; k(x-y) ~~ kx-ky ;; wxyz ~~ xyzw
    x^2+2x+1 ~~ (x+1)^2 ;; \frac{x^2-1}{x-1} ~~ x+1 ;; 2X+1 ~~ 2x+1 ;; 2\mathbf{j}+3\mathbf{k} ~~ 3k+2j
    y=2x+3 ~~ 2x-y+3=0 ;; 2x=4y ~~ x-2y=0 ;; 2x>6 ~~ x>3 ;; -x<-3 ~~ x>3 ;; -2x+4y\le 8 ~~ x-2y\ge -4
    {10\choose 3} ~~ 120 ;; \sin 30^\circ ~~ \frac12 ;; \sin(30^{\circ}) ~~ \frac12 ;; \log_2 8 ~~ 3\%
    \sqrt\pi ~~ \sqrt{\pi} ;; \sqrt\pi ~~ \pi^\frac12 ;; x^\frac12 ~~ \sqrt x ;; \sqrt[3]2 ~~ 2^{1/3}
    2\sqrt[3]2 ~~ \sqrt[3]{16} ;; \sqrt\frac{x}{y} ~~ \sqrt{x/y} ;; \sqrt[3]2x ~~ x\sqrt[3]{2}
    2007+\frac\pi2+\log_2 8 ~~ 2010+\frac\pi 2 ;; \sqrt{R^2-r^2} ~~ \sqrt{(R-r)(R+r)}
""")
UNEQUAL = pairs(
    r"x>3 ~~ -2x>-6 ;; \cos 2x ~~ 2\sin x\cos x ;; \sqrt{R^2-r^2} ~~ 0 ;; \binom{5}{2} ~~ 11 "
    r";; \sqrt[3]2 ~~ \sqrt2 ;; x^\frac12 ~~ \frac{x}{2} ;; \sqrt\pi ~~ \pi"
)


@pytest.mark.parametrize(("answer", "truth"), [*SAME, *((b, a) for a, b in SAME), *ONE_WAY])
def test_the_same(answer, truth):
    verdict = equivalent(answer, truth)
    assert verdict.equal
    assert verdict.asked == 0, "decided without math-verify"


@pytest.mark.parametrize(("answer", "truth"), [*DIFFERENT, *((b, a) for a, b in DIFFERENT), *DIFFERENT_ONE_WAY])
def test_different(answer, truth):
    assert not equivalent(answer, truth).equal


@pytest.mark.parametrize(
    ("answer", "truth", "equal"), [(*pair, True) for pair in EQUAL] + [(*pair, False) for pair in UNEQUAL]
)
def test_math_verify_is_asked_about_the_rest(answer, truth, equal):
    for verdict in (equivalent(answer, truth), equivalent(truth, answer)):
        assert (verdict.equal, verdict.timed_out, verdict.asked) == (equal, False, 1)


@pytest.mark.parametrize("truth", [r"\frac{1}{", r"x+\text{ or 6}", "1010_2+1", "x@y"])
def test_an_unreadable_truth_is_reported(truth):
    assert equivalent("x+5", truth).unreadable_truth
    assert not equivalent(truth, "x+5").unreadable_truth and not equivalent(truth, truth).unreadable_truth


def test_what_is_too_long_equals_nothing_and_a_tolerance_is_for_irrational_values_only():
    assert equivalent("7" * LONGEST, "7" * LONGEST).equal
    assert not equivalent("7" * (LONGEST + 1), "7" * (LONGEST + 1)).equal
    assert not equivalent("7" * 100_000, "7").equal
    for answer, truth, tolerance, equal in (
        ("3.1416", r"\pi", 1e-4, True),
        ("6.28", r"2\pi", 1e-4, True),
        ("6.3", r"2\pi", 1e-4, False),
        ("10000.5", "10000", 1e-4, False),
        ("3", r"\pi", 0.1, False),
    ):
        assert equivalent(answer, truth, tolerance=tolerance).equal is equal, answer


@pytest.mark.parametrize(
    "text",
    ["9" * 2000, "{" * 2000, "1," * 1000, r"\text{a}" * 280, "1" + "a. " * 600, "(a+b+c+d+e)^{9}" * 20, "1/" * 900,
     r"\sqrt{999999999989}" * 20, "x=" * 900, "a and " * 300, r"\frac{1}{" * 200, r"\begin{matrix}" * 130,
     "1:\n" * 600, "5" + "'=" * 900, "5" + r"\quad=" * 300, "<&" * 900, "$" * 2000, "%" * 2000, ", " * 1000,
     r"\text{" + " " * 1900, "5" + " " * 1990 + "x", r"\phantom{" * 200, r"{a\choose b" * 150, "(A)" * 600],
)  # fmt: skip
def test_no_text_costs_more_than_a_moment_in_this_process(text, monkeypatch):
    monkeypatch.setattr(algebra, "equal", lambda *_: algebra.MathVerifyAnswer(False, False, 0.0))
    with quick():
        assert not equivalent(text, "7").equal and not equivalent("7", text).equal


ATTACKS = [
    "__import__('os').system('touch {mark}')",
    "().__class__.__base__.__subclasses__()",
    r"\operatorname{{__import__}}(os)",
    "open('{mark}', 'w')",
    r"\text{{exec}}(\text{{open('{mark}','w')}})",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_text_is_not_evaluated(attack, tmp_path):
    mark = tmp_path / "mark"
    for truth in ("5", r"\log_2 8"):
        assert not equivalent(attack.format(mark=mark), truth).equal
    assert not mark.exists()


def in_child(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with what child.py sets up: `verifier`, already confined."""
    setup = """
        from burnish.rewards.equivalence import child
        verifier = child.Verifier()
        child.confine()
    """
    code = textwrap.dedent(setup) + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)


def test_the_child_refuses_to_compile_text_but_still_compares():
    """Also what never gets there: the reader of plain expressions, which is an `eval`, and sympify of a string."""
    done = in_child(r"""
        import sympy, os, socket, subprocess
        from math_verify.parser import parse_expr_cached
        for act in (
            lambda: eval("1+1"), lambda: exec("x=1"), lambda: sympy.sympify("1+1"), lambda: parse_expr_cached("1+1"),
            lambda: os.system("true"), lambda: subprocess.run(["true"]), lambda: socket.socket(),
            lambda: open("/tmp/burnish_equivalence_test", "w"), lambda: os.fork(), lambda: os.remove("/nowhere"),
        ):
            try:
                print("done", act())
            except (PermissionError, sympy.SympifyError) as error:
                print("refused")
        print(verifier.equal(r"2.5\cos x\sin x", r"\frac{5}{4}\sin(2x)"), verifier.equal("1,234.5", "1234.5"))
        print(verifier.equal("__import__('os').system('true')", "5"))
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["refused"] * 10 + ["True True", "False", ""]


def test_a_timeout_is_reported_and_the_next_question_works():
    before = time.monotonic()
    verdict = equivalent(HARD, "1", seconds=1.0)
    assert (verdict.equal, verdict.timed_out) == (False, True)
    many = equivalent(f"{HARD},{HARD}+1,{HARD}+2", r"\sin 1,\sin 2,\sin 3", seconds=1.0)  # one limit for all questions
    assert many.timed_out
    verdict = equivalent(r"\log_2 8", "3", seconds=30.0)
    assert verdict.equal and not verdict.timed_out
    assert time.monotonic() - before < 60


def test_a_busy_machine_is_an_error_and_no_wrong_answer(monkeypatch):
    """The limit is of processor time, of which a process that is stopped gets none."""
    assert equivalent(r"\log_2 8", "3").equal
    monkeypatch.setattr(algebra, "WALL_SECONDS", 0.5)
    os.kill(pid(), signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"gave no answer in 0.6 s: it is stopped, or the machine is too busy"):
        equivalent(r"\log_2 16", "4", seconds=0.1)
    monkeypatch.undo()
    assert equivalent(r"\log_2 8", "3").equal
    os.kill(stopped := pid(), signal.SIGSTOP)
    threading.Timer(1.5, os.kill, (stopped, signal.SIGCONT)).start()
    assert equivalent(r"\log_2 16", "4", seconds=1.0).equal


def test_memory_is_bounded():
    assert not equivalent(r"\operatorname{zeros}(99999,99999)", "1", seconds=10.0).equal
    assert equivalent(r"\log_2 8", "3").equal


def pid() -> int:
    assert algebra._process.child is not None
    return algebra._process.child.pid


def test_many_threads_share_one_process_that_outlives_the_thread_that_started_it():
    algebra.stop()
    with ThreadPoolExecutor(max_workers=6) as threads:
        verdicts = list(threads.map(lambda k: equivalent(rf"\log_2 {2**k}", str(k)), range(2, 8)))
    assert all(verdict.equal for verdict in verdicts)
    first = pid()

    async def both():
        here = equivalent(r"\log_3 9", "2").equal
        return here, (await asyncio.to_thread(equivalent, r"\log_3 27", "3")).equal

    assert asyncio.run(both()) == (True, True) and pid() == first


def test_after_fork_each_process_has_its_own():
    assert equivalent(r"\log_2 8", "3").equal
    mine = pid()
    child = os.fork()
    if child == 0:
        right = equivalent(r"\log_2 16", "4").equal and pid() != mine
        algebra.stop()
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert equivalent(r"\log_2 8", "3").equal and pid() == mine


def test_one_that_was_killed_while_idle_is_replaced():
    assert equivalent(r"\log_2 8", "3").equal
    os.kill(pid(), signal.SIGKILL)  # whether it is noticed before the next question or not
    assert equivalent(r"\log_2 8", "3").equal
    os.kill(stopped := pid(), signal.SIGSTOP)  # so that it cannot read the question
    threading.Timer(0.5, os.kill, (stopped, signal.SIGKILL)).start()
    assert equivalent(r"\log_2 8", "3").equal and pid() != stopped


def test_one_that_dies_at_work_is_an_error():
    assert equivalent(r"\log_2 8", "3").equal

    def kill(process: int, before: float) -> None:
        while computed(process) < before + 0.3:  # it is at work by then
            time.sleep(0.01)
        os.kill(process, signal.SIGKILL)

    threading.Thread(target=kill, args=(pid(), computed(pid())), daemon=True).start()
    with pytest.raises(WorkerError, match="math-verify process died: killed by SIGKILL"):
        equivalent(HARD, "1", seconds=30.0)


def test_one_that_cannot_start_is_an_error_that_says_why(monkeypatch, tmp_path):
    algebra.stop()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerError, match=r"could not be started.*/nowhere/python"):
        equivalent(r"\log_2 8", "3")
    monkeypatch.undo()
    (tmp_path / "math_verify.py").write_text("raise ImportError('no math_verify here')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(WorkerError, match="could not be started: ImportError: no math_verify here"):
        equivalent(r"\log_2 8", "3")


@pytest.mark.parametrize("busy", [False, True])
def test_it_dies_with_its_parent(busy):
    program = textwrap.dedent(f"""
        import threading, time
        from burnish.rewards.equivalence import algebra, equivalent
        equivalent(r"\\log_2 8", "3")
        if {busy}:
            threading.Thread(target=equivalent, args=({HARD!r}, "1", 60.0), daemon=True).start()
            time.sleep(0.5)
        print(algebra._process.child.pid, flush=True)
        time.sleep(100)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        helper = int(parent.stdout.readline())
        assert Path(f"/proc/{helper}").exists()
        parent.kill()
    assert until(lambda: not is_running(helper))


def computed(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "text",
    ["1/2\\pi", "x", "2i+j", r"\sin x", "5!", "2^x", "((((", "9^{9^{9}}", "(x+y+z)^{60}", "1 2", r"\frac{1}{0}",
     "", "x^2^2", r"\sqrt[3]{2}", r"\sqrt{x}", "1" * 401, "(" * 60 + "1" + ")" * 60, "(1]", r"\frac{1}", "+", "|x|"],
)  # fmt: skip
def test_the_exact_arithmetic_refuses_what_it_cannot_do(text):
    with pytest.raises(exact.Unreadable):
        read(tidy(text))
