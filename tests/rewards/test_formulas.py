"""Which formulas may be parsed by running them: those that can do no harm and cost little."""

import time

import pytest

from burnish.rewards.scores.formulas import is_formula


@pytest.mark.parametrize(
    "text",
    [
        "7*X**9 - 2*X**6 + 7*X**4 + C",
        "-X**5/7 - X**3/2 + C",
        "x*asin(3*x) + sqrt(1 - 9*x**2)/3 + C",
        "exp(x)*sin(x) + exp(x)*cos(x) + C",
        "201400*z**7 + 12350*z**6 - 66652*z**5",
        "(x + 1)**(-3/2)",
        "E**(-6*x - 10)",
        "((x + 1)**2 - 1)**(1/2)",
        "0.5*x**2.5 + pi",
        " (2*x\n + 1) ",
        "-3*sin(x + 8)**3*cos(x + 8)",
    ],
)
def test_plain_formulas(text):
    assert is_formula(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x y",
        "2x",
        "x.__class__",
        "x.a",
        "__import__('os').system('true')",
        "eval(x)",
        "Integral(x**2, x)",
        "Symbol('x')",
        "N(x)",
        "log(x, 2)",
        "sin",
        "True",
        "x[0]",
        "x = 3",
        "x!",
        "lambda: x",
        "1e999999999",
        "0xff",
        "1_000",
        "9**9**9",
        "9**(9**9)",
        "9**999999",
        "9**(0*x + 99999999)",
        "9**(99*99*99)",
        "((9**99)**99)**99",
        "9" * 21,
        "1 if x else 2",
        "x*" * 2000 + "x",
        "(" * 900 + "x" + ")" * 900,
        "-" * 1900 + "x",
        "a" * 1900 + "!",
        "1+" * 900 + "1",
    ],
)
def test_texts_that_are_not_formulas_are_rejected_quickly(text):
    began = time.process_time()
    assert not is_formula(text)
    assert time.process_time() - began < 5
