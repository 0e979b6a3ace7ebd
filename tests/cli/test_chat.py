"""`burnish chat`: turns from a pipe and from a terminal, commands, Ctrl-C, a full context, and harmless output."""

import io
import json
import signal
from pathlib import Path

import pytest

from burnish.cli.main import main
from burnish.serving import terminal
from burnish.serving.loading import ModelOptions, load
from burnish.serving.terminal import split

NANO = Path(__file__).parents[2] / "burnish" / "models" / "nano"
QUESTION = "347+586=?"


@pytest.fixture(scope="module")
def nano():
    return load(ModelOptions(str(NANO), device="cpu"))


@pytest.fixture
def loaded(nano, monkeypatch):
    monkeypatch.setattr(terminal, "load", lambda options: nano)


@pytest.fixture
def say(loaded, monkeypatch, capsys):
    """`say("a line", …, flags=[…])` pipes lines into the command: exit code, stdout, stderr."""

    def run(*lines, flags=("--seed", "1")):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        code = main(["chat", str(NANO), *flags])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def at_the_terminal(loaded, monkeypatch, capsys):
    """The same, typed: a line that is an exception is raised where it would be typed."""

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def run(*lines, flags=("--seed", "1")):
        typed = iter([*lines, EOFError()])

        def read(prompt):
            line = next(typed)
            if isinstance(line, BaseException | type):
                raise line
            return line

        out = Terminal()
        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr("sys.stdout", out)
        code = main(["chat", str(NANO), *flags])
        return code, out.getvalue(), capsys.readouterr().err

    return run


def saved(file):
    return [json.loads(line)["messages"] for line in file.read_text().splitlines()]


@pytest.mark.parametrize(("lines", "code"), [(["1+1=?"], 0), (["/exit"], 0), (["/nothing"], 2)])
def test_the_engine_is_closed_at_the_end_whatever_it_is(say, nano, monkeypatch, lines, code):
    closed = []
    monkeypatch.setattr(nano.engine, "close", lambda: closed.append(len(closed)))
    assert say(*lines)[0] == code and closed == [0]


@pytest.mark.parametrize("temperature", ["0.005", "3"])
def test_a_temperature_that_vllm_would_change_is_refused_before_the_model_loads(monkeypatch, capsys, temperature):
    monkeypatch.setattr(terminal, "load", lambda *_: pytest.fail("the model was loaded"))
    assert main(["chat", str(NANO), "--engine", "vllm", "--temperature", temperature]) == 2
    assert f"--temperature {temperature}: vLLM takes 0 (greedy), or 0.01 to 2" in capsys.readouterr().err


def test_each_line_of_a_pipe_is_a_turn_and_only_answers_are_printed(say, tmp_path):
    file = tmp_path / "talk.jsonl"
    code, out, err = say(QUESTION, "", "12+34=?", f"/save {file}")
    assert code == 0 and err == f"4 messages added to {file}\n"
    (messages,) = saved(file)
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant"]
    assert [m["content"] for m in messages][::2] == [QUESTION, "12+34=?"]
    assert out == "".join(f"{m['content']}\n" for m in messages[1::2]) and "answer: " in out
    say(QUESTION, f"/save {tmp_path / 'a.jsonl'}", flags=["--system", "Be brief."])
    assert saved(tmp_path / "a.jsonl")[0][0] == {"role": "system", "content": "Be brief."}
    code, out, err = say("/help", "/exit", QUESTION)
    assert (code, out) == (0, "") and "/save    FILE" in err
    first, again, other = (say(QUESTION, QUESTION, flags=["--seed", seed])[1] for seed in ("1", "1", "2"))
    assert first == again != other
    greedy = ["--temperature", "0"]
    assert say(QUESTION, flags=greedy)[1] == say(QUESTION, flags=greedy)[1]


def test_earlier_turns_are_part_of_the_prompt(say, nano, monkeypatch):
    prompts = []
    generate = nano.engine.generate

    def watch(request, on_token):
        prompts.append(nano.tokenizer.decode(request.prompt_ids))
        return generate(request, on_token)

    monkeypatch.setattr(nano.engine, "generate", watch)
    _, out, _ = say(
        "1+1=?", "/system S", "2+2=?", "/reset", "3+3=?", "/system", "/reset", "//4", flags=["--max-tokens", "2"]
    )
    answers = out.splitlines()
    assert prompts == [
        "<|start|>1+1=?\n",
        f"<|start|>S\n<|start|>1+1=?\n{answers[0]}<|end|><|start|>2+2=?\n",
        "<|start|>S\n<|start|>3+3=?\n",
        "<|start|>/4\n",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/rest", "unknown command: /rest; did you mean /reset? (`//rest` says it to the model)"),
        ("/save", "/save needs a file: /save talk.jsonl"),
        ("/save x", "/save: nothing has been said yet"),
        ("9" * 2000, "would have 2002 tokens and the context holds 1024, so the question was not asked: /reset begins"),
    ],
)
def test_an_error_ends_piped_input_but_not_an_interactive_chat(say, at_the_terminal, line, message):
    code, out, err = say(line, QUESTION)
    assert (code, out) == (2, "") and message in err
    code, out, err = at_the_terminal(line, QUESTION)
    assert code == 0 and message in err and "answer: " in out


def test_an_answer_that_is_cut_off_says_why_and_a_temperature_may_be_too_low(say, at_the_terminal):
    assert "cut off: --max-tokens" in say(QUESTION, flags=["--max-tokens", "3"])[2]
    assert "cut off: the context of 1024 tokens is full; /reset" in say("1+" * 510)[2]
    code, out, err = say(QUESTION, flags=["--temperature", "1e-40"])
    assert (code, out) == (2, "") and "temperature=1e-40: it must be 0 (greedy), or at least 0.001" in err
    _, _, err = at_the_terminal(QUESTION, "/save /proc/nowhere/a.jsonl")
    assert "cannot be written" in err


def interrupted_after(monkeypatch, tokens):
    """Ctrl-C when so many tokens have been sampled, in the first answer."""
    push, seen = terminal.TextStream.push, []

    def counting(self, token):
        seen.append(token)
        if len(seen) == tokens:
            signal.raise_signal(signal.SIGINT)
        return push(self, token)

    monkeypatch.setattr(terminal.TextStream, "push", counting)


def test_ctrl_c_stops_an_answer_and_keeps_the_talk(at_the_terminal, monkeypatch, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    interrupted_after(monkeypatch, 5)
    code, out, err = at_the_terminal(QUESTION, QUESTION, f"/save {tmp_path / 'a.jsonl'}")
    assert code == 0 and "stopped; the part that was written stays in the conversation" in err
    (messages,) = saved(tmp_path / "a.jsonl")
    assert len(messages) == 4 and 4 <= len(messages[1]["content"]) <= 8
    assert out.startswith(messages[1]["content"] + "\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_before_the_first_word_takes_the_question_back(at_the_terminal, monkeypatch, nano):
    generate = nano.engine.generate

    def too_soon(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return generate(*args, **kwargs)

    monkeypatch.setattr(nano.engine, "generate", too_soon)
    code, out, err = at_the_terminal(QUESTION, "/save nowhere.jsonl")
    assert (code, out) == (0, "\n") and "the question is dropped" in err and "nothing has been said yet" in err


def test_ctrl_c_ends_a_pipe(say, monkeypatch):
    interrupted_after(monkeypatch, 5)
    code, out, err = say(QUESTION, QUESTION)
    assert code == 130 and out.count("\n") <= 2 and "stopped" in err


def test_ctrl_c_at_the_prompt_and_a_history_that_no_longer_fits(at_the_terminal, tmp_path):
    code, _, err = at_the_terminal(KeyboardInterrupt)
    assert code == 0 and "Ctrl-D or /exit leaves" in err
    assert "nano on cpu in float32, context 1024 tokens. /help lists commands" in err
    file, long = tmp_path / "a.jsonl", "1+" * 500
    code, _, err = at_the_terminal(long, "12+34=?" * 3, f"/save {file}", "/reset", QUESTION, f"/save {file}")
    assert code == 0 and "so the question was not asked" in err
    first, second = saved(file)
    assert (first[0]["content"], second[0]["content"], len(first)) == (long, QUESTION, 2)


def test_input_that_is_not_utf8(loaded, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))
    assert main(["chat", str(NANO)]) == 2
    assert "the input is not UTF-8" in capsys.readouterr().err


def test_a_reader_that_has_gone(say, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def fileno(self):
            return 2

    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr("sys.stdout", Closed())
    assert say(QUESTION)[0] == 141


def test_what_a_model_writes_cannot_command_the_terminal(capsys):
    answer, text = terminal.PrintedAnswer(), "plain\ttext é\n\x1b[2Jover\rwritten\u202e"
    answer.end(text)
    assert capsys.readouterr().out == "plain\ttext é\n\\x1b[2Jover\\x0dwritten\\u202e\n" and answer.text == text


def test_a_terminal_that_cannot_write_every_character(nano, say, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    monkeypatch.setattr(terminal.TextStream, "push", lambda self, token: "é")
    assert say(QUESTION, flags=["--max-tokens", "2"])[0] == 0
    assert written.getvalue().startswith(b"\\xe9\\xe9")


def test_lines_that_begin_with_a_slash():
    assert split("/save a b.jsonl ") == ("/save", "a b.jsonl")
    assert split("/usr/bin is a folder") == ("", "/usr/bin is a folder")
    assert split("//help") == ("", "/help")
