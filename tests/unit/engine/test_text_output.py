import pytest
import tokenizers

from inlay.engine.text_output import TextOutput
from inlay.models.text_stream import make_spelling
from inlay.models.vocabularies.token_table import TokenTable
from tests.support.tiny_tokenizers import write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


def _output(tokenizer, stops=()):
    spelling = make_spelling(TokenTable.of(tokenizer), lambda: tokenizer)
    return TextOutput(spelling.stream(frozenset(), ()), stops)


def _push(output, tokenizer, text, stops_count=True):
    shown = ""
    for token_id in tokenizer.encode(text).ids:
        piece, stop = output.push(token_id, stops_count)
        shown += piece
        if stop is not None:
            return shown, stop
    return shown, None


def test_text_passes_through(tokenizer):
    output = _output(tokenizer)
    text = "a lantern, 你好 🙂"
    assert _push(output, tokenizer, text) == (text, None)
    assert output.end() == ("", None)


def test_a_stop_text_ends_the_choice(tokenizer):
    output = _output(tokenizer, ["door"])
    assert _push(output, tokenizer, "the narrow door and") == ("the narrow ", "door")


def test_held_text_comes_at_the_end(tokenizer):
    output = _output(tokenizer, ["door and"])
    shown, stop = _push(output, tokenizer, "the door a")
    assert stop is None
    rest, stop = output.end()
    assert (shown + rest, stop) == ("the door a", None)


def test_stops_do_not_count_before_min_tokens(tokenizer):
    output = _output(tokenizer, ["door"])
    assert _push(output, tokenizer, "a door, ", stops_count=False) == ("a door, ", None)
    assert _push(output, tokenizer, "a door") == ("a ", "door")


def test_an_incomplete_character_is_flushed(tokenizer):
    output = _output(tokenizer)
    token_id = tokenizer.encode("🚀").ids[0]
    assert output.push(token_id, True) == ("", None)
    text, stop = output.end()
    assert text and stop is None
