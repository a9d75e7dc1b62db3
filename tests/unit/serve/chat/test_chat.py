import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import ConfigError, EngineDiedError, RequestError
from inlay.serve.chat.backends import Piece, ServerBackend
from inlay.serve.chat.conversation import ChatOptions, Conversation
from inlay.serve.chat.session import LoopThread, Session, converse
from inlay.serve.chat.slash import Then, is_command, run_command
from inlay.serve.chat.terminal import Terminal, printable
from inlay.serve.chat.timing import AnswerTiming
from inlay.serve.openai_client import OpenAIClient
from tests.unit.serve.bench.fake_openai import FakeOpenAI, serving


class Echo:
    """A backend that repeats the last message; some messages make it fail."""

    title = "echo"

    def __init__(self) -> None:
        self.asked: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []

    async def answer(
        self, messages: list[dict[str, Any]], options: dict[str, Any], timing: AnswerTiming
    ) -> AsyncIterator[Piece]:
        self.asked.append((messages, options))
        text = messages[-1]["content"]
        if text == "too long":
            raise RequestError("the prompt does not fit")
        if text == "die":
            raise EngineDiedError("the engine died")
        timing.prompt_tokens, timing.cached_tokens = 10, 4
        yield Piece(reasoning="hm ")
        for word in text.split():
            timing.saw_tokens(1)
            await asyncio.sleep(0.001)
            yield Piece(f"<{word}>")

    async def stats(self) -> list[str]:
        return ["engine fine"]

    async def close(self) -> None:
        pass


@pytest.fixture
def runner() -> Any:
    thread = LoopThread()
    yield thread
    thread.stop()
    thread.loop.close()


def chat(text: str, runner: LoopThread) -> tuple[str, Echo, Session]:
    backend, out = Echo(), io.StringIO()
    terminal = Terminal(io.StringIO(text), out)
    session = Session(backend, terminal, runner)
    converse(terminal, [session])
    return out.getvalue(), backend, session


def test_an_answer_and_its_figures(runner: LoopThread) -> None:
    out, backend, session = chat("one two\n", runner)
    lines = out.splitlines()
    assert lines[0] == "hm <one><two>"
    names = [line.split(":")[0] for line in lines if ":" in line]
    assert names == [
        "prompt eval count",
        "prompt eval duration",
        "prompt eval rate",
        "eval count",
        "eval duration",
        "eval rate",
    ]
    assert "6 token(s) (and 4 from the cache)" in lines[2]
    assert session.conversation.messages[-1] == {"role": "assistant", "content": "<one><two>"}
    assert backend.asked[0][0] == [{"role": "user", "content": "one two"}]


def test_the_conversation_goes_on(runner: LoopThread) -> None:
    _, backend, _ = chat("/system be kind\na\n/set temperature=0 max_tokens=5\nb\n", runner)
    messages, options = backend.asked[-1]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert options == {"temperature": 0.0, "max_tokens": 5}


def test_several_answer_each_message(runner: LoopThread) -> None:
    out = io.StringIO()
    terminal = Terminal(io.StringIO("one\n/system Be brief.\ntwo\n/exit\nthree\n"), out)
    sessions = [Session(Echo(), terminal, runner, title=title) for title in ("before", "after")]
    converse(terminal, sessions)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line in ("before:", "after:")] == ["before:", "after:"] * 2
    assert lines[:2] == ["before:", "hm <one>"]
    for session in sessions:
        assert [message["content"] for message in session.conversation.messages][::2] == [
            "one", "two",
        ]  # fmt: skip
        assert session.conversation.system == "Be brief."


def test_several_say_the_same_to_a_command_once(
    runner: LoopThread, capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    terminal = Terminal(
        io.StringIO("/set max_tokens=5\n/sett\none\n/regen\n/stats\n/reset\n/stats\n"), out
    )
    sessions = [Session(Echo(), terminal, runner, title=title) for title in ("before", "after")]
    converse(terminal, sessions)
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["max_tokens=5", "before:"]
    assert lines.count("the conversation starts anew") == 1
    assert lines.count("engine fine") == 2, "once for each /stats"
    assert [line for line in lines if line.startswith("hm ")] == ["hm <one>"] * 4
    assert capsys.readouterr().err.count("there is no command /sett") == 1
    assert all(session.conversation.options.max_tokens == 5 for session in sessions)


def test_what_sessions_say_apart_is_below_their_titles(runner: LoopThread) -> None:
    out = io.StringIO()
    terminal = Terminal(io.StringIO("/system\n/stats\n"), out)
    sessions = [Session(Echo(), terminal, runner, title=title) for title in ("before", "after")]
    sessions[1].conversation.system = "Be brief."
    converse(terminal, sessions)
    lines = out.getvalue().splitlines()
    assert lines[:4] == ["before:", "no system message", "after:", "Be brief."]


def test_regen_asks_the_same_again(runner: LoopThread) -> None:
    _, backend, session = chat("a\n/regen\n", runner)
    assert backend.asked[0] == backend.asked[1]
    assert len(session.conversation.messages) == 2


def test_messages_may_span_lines(runner: LoopThread) -> None:
    text = 'a \\\nb\n"""c\nd"""\n"""\ne\n\nf\n"""\n"""open'
    _, backend, _ = chat(text, runner)
    asked = [messages[-1]["content"] for messages, _ in backend.asked]
    assert asked == ["a \nb", "c\nd", "e\n\nf", "open"]


def test_errors_do_not_end_the_chat(runner: LoopThread, capsys: pytest.CaptureFixture[str]) -> None:
    _, backend, session = chat("too long\n/sett x=1\n/set temperatures=1\nfine\n", runner)
    errors = capsys.readouterr().err
    assert "error: the prompt does not fit" in errors
    assert "there is no command /sett. Did you mean /set?" in errors
    assert "Did you mean temperature?" in errors
    assert [message["content"] for message in backend.asked[-1][0]] == ["fine"]
    assert session.failed


def test_a_dead_engine_ends_it(runner: LoopThread) -> None:
    with pytest.raises(EngineDiedError):
        chat("die\nnever\n", runner)


def test_exit_stats_reset_help(runner: LoopThread) -> None:
    out, backend, session = chat("a b\n/stats\n/help\n/reset\n/exit\nnever\n", runner)
    assert "answers: 1; messages in the conversation: 2" in out
    assert "output: 2 tokens" in out and "engine fine" in out
    assert "/regen" in out and "/quit" not in out
    assert len(backend.asked) == 1 and session.conversation.messages == []


def test_save_and_load(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    first = Conversation(system="s", options=ChatOptions(temperature=0.5, stop=("x",)))
    first.ask("q")
    first.answered("a")
    run_command(f"/save {file}", first)
    second = Conversation()
    outcome = run_command(f"/load {file}", second)
    assert second == first
    assert outcome.lines == (f"loaded 2 messages from {file}",)


def test_several_save_and_load_their_own(tmp_path: Path, runner: LoopThread) -> None:
    def talk(text: str) -> tuple[list[Session], str]:
        out = io.StringIO()
        terminal = Terminal(io.StringIO(text), out)
        sessions = [Session(Echo(), terminal, runner, title=title) for title in ("before", "after")]
        sessions[1].conversation.system = "Be brief."
        converse(terminal, sessions)
        return sessions, out.getvalue()

    file = tmp_path / "talk.json"
    saved, said = talk(f"one\n/save {file}\n")
    names = [f"talk.{title}.json" for title in ("before", "after")]
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(names)
    for title, name in zip(("before", "after"), names, strict=True):
        assert f"{title}:\nsaved 2 messages to {tmp_path / name}\n" in said
    loaded, _ = talk(f"/system other\n/load {file}\n")
    assert [one.conversation for one in loaded] == [one.conversation for one in saved]
    assert loaded[0].conversation != loaded[1].conversation
    # What one conversation was saved to is for both.
    run_command(f"/save {tmp_path / 'alone.json'}", saved[1].conversation)
    both, said = talk(f"/load {tmp_path / 'alone.json'}\n")
    assert [one.conversation for one in both] == [saved[1].conversation] * 2
    assert said == f"loaded 2 messages from {tmp_path / 'alone.json'}\n"
    assert "cannot write /: " in str(both[0].obey("/save /"))


@pytest.mark.parametrize("content", ["nonsense", "{}", '{"messages": 3}', '[{"role": "user"}]'])
def test_files_that_hold_no_conversation(tmp_path: Path, content: str) -> None:
    file = tmp_path / "talk.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="talk.json"):
        run_command(f"/load {file}", Conversation())


def test_commands_say_what_they_need() -> None:
    for command in ("/save", "/load", "/regen", "/load /not/there.json"):
        with pytest.raises(ConfigError):
            run_command(command, Conversation())
    assert run_command("/set", Conversation()).lines[0] == "all at the model's defaults"
    assert run_command("/quit", Conversation()).then is Then.LEAVE
    assert not is_command("/ is a slash") and not is_command("3/4")


def test_options_have_ranges() -> None:
    with pytest.raises(ConfigError, match="top_p must be in 0..1, got 1.5"):
        run_command("/set top_p=1.5", Conversation())
    with pytest.raises(ConfigError, match="/set zz: write name=value, for example temperature=0.7"):
        run_command("/set zz", Conversation())


def test_answers_cannot_command_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07\x9bc\td\né") == "a[31mbc\td\né"


def test_rates_leave_out_what_did_not_take_the_time() -> None:
    timing = AnswerTiming(sent_s=10.0, first_s=10.5, last_s=12.5)
    timing.prompt_tokens, timing.cached_tokens, timing.output_tokens = 30, 10, 5
    assert timing.lines() == [
        "prompt eval count:    20 token(s) (and 10 from the cache)",
        "prompt eval duration: 500.0 ms",
        "prompt eval rate:     40.00 tokens/s",
        "eval count:           5 token(s)",
        "eval duration:        2.00 s",
        "eval rate:            2.00 tokens/s",
    ]
    assert AnswerTiming().lines()[-1] == "eval rate:            -"


async def test_a_server_answers() -> None:
    with serving(FakeOpenAI(gap_s=0.001)) as fake:
        backend = ServerBackend(OpenAIClient(fake.url), "fake")
        timing = AnswerTiming()
        pieces = backend.answer([{"role": "user", "content": "hi"}], {"max_tokens": 3}, timing)
        assert [piece.content async for piece in pieces] == ["w0 ", "w1 ", "w2 "]
        await backend.close()
    assert (timing.output_tokens, timing.cached_tokens) == (3, 1) and timing.prompt_s > 0
    assert json.loads(json.dumps(fake.bodies[0]))["stream_options"] == {"include_usage": True}


async def test_a_server_refuses() -> None:
    with serving(FakeOpenAI(fail_every=1)) as fake:
        backend = ServerBackend(OpenAIClient(fake.url), "fake")
        with pytest.raises(RequestError, match="HTTP 503: the queue is full"):
            async for _ in backend.answer([], {"max_tokens": 3}, AnswerTiming()):
                pass
        await backend.close()
