"""Which pieces are asked for next."""

import numpy as np

from inlay.weights.choice import Known, choose


def known(wanted, copies, asked) -> Known:
    return Known(
        wanted_P=np.array(wanted, bool),
        copies_P=np.array(copies, np.int32),
        asked_P=np.array(asked, np.int32),
        order_P=np.arange(len(wanted)),
    )


def chosen(about: Known, has=None, *, publisher=False, idle=False, limit=9) -> list[int]:
    has_P = np.ones(len(about.wanted_P), bool) if has is None else np.array(has, bool)
    return choose(about, has_P, publisher=publisher, idle=idle, limit=limit).tolist()


def test_the_rarest_come_first() -> None:
    about = known([1, 1, 1, 0, 1], [3, 1, 2, 0, 1], [0, 0, 0, 0, 5])
    assert chosen(about, limit=1) == [1]
    assert chosen(about, limit=2) == [1, 2]
    assert chosen(about) == [0, 1, 2, 4]


def test_only_what_the_holder_has() -> None:
    about = known([1, 1, 1], [1, 1, 1], [0, 0, 0])
    assert chosen(about, [0, 0, 1]) == [2]
    assert chosen(about, [0, 0, 0]) == []


def test_a_publisher_is_spared_what_others_have_or_fetch() -> None:
    about = known([1, 1, 1], [0, 1, 0], [1, 0, 0])
    assert chosen(about, publisher=True) == [2]
    about = known([1, 1, 0], [0, 1, 0], [1, 0, 0])
    assert chosen(about, publisher=True) == []
    assert chosen(about, publisher=True, idle=True) == [0, 1], "nobody else could help"
