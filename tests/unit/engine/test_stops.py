from hypothesis import given
from hypothesis import strategies as st

from inlay.engine.stops import StopFinder


def _run(pieces, stops):
    finder, shown = StopFinder(stops), ""
    for piece in pieces:
        text, stop = finder.push(piece)
        shown += text
        if stop is not None:
            return shown, stop
    return shown + finder.flush(), None


def test_a_stop_across_pieces_is_found_and_not_shown():
    assert _run(["one\n", "\nObs", "erv", "ation: two"], ["\nObservation:"]) == (
        "one\n",
        "\nObservation:",
    )


def test_text_that_might_be_a_stop_is_held_back():
    finder = StopFinder(["END"])
    assert finder.push("the E") == ("the ", None)
    assert finder.push("N") == ("", None)
    assert finder.push("T") == ("ENT", None)
    assert finder.push("E") == ("", None)
    assert finder.flush() == "E"


def test_the_earliest_stop_wins():
    assert _run(["abcdef"], ["ef", "cd"]) == ("ab", "cd")
    assert _run(["abcdef"], ["bcd", "b"]) == ("a", "bcd")


@given(
    pieces=st.lists(st.text("ab ", max_size=4), max_size=12),
    stops=st.lists(st.text("ab ", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_pieces_give_what_the_whole_text_gives(pieces, stops):
    shown, stop = _run(pieces, stops)
    whole = "".join(pieces)
    ends = [whole.find(s) + len(s) for s in stops if s in whole]
    if not ends:
        assert (shown, stop) == (whole, None)
        return
    assert stop in stops
    assert whole.startswith(shown + stop)
    assert not any(s in shown for s in stops), "a stop was shown"
