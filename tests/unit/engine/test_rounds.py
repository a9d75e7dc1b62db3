"""Shares of tenants, request by request."""

from inlay.engine.rounds import Rounds


def test_tenants_with_work_take_turns_by_tokens():
    rounds = Rounds()
    taken = [(rounds.take("a", 100), "a") for _ in range(3)]
    taken += [(rounds.take("b", 50), "b") for _ in range(4)]
    assert [name for _, name in sorted(taken)] == ["a", "b", "b", "a", "b", "b", "a"]


def test_who_was_idle_has_saved_nothing():
    rounds = Rounds()
    for _ in range(3):
        rounds.begun(rounds.take("a", 100))
    assert rounds.take("b", 100) == rounds.now == 200
    assert rounds.take("b", 100) == rounds.take("a", 100) == 300


def test_tenants_without_work_are_forgotten():
    rounds = Rounds()
    for number in range(5000):
        rounds.begun(rounds.take(str(number), 10) + 10)
        rounds.charge(str(number), -10)
    assert len(rounds._next) <= 1025
