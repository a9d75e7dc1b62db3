import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from inlay.core.errors import ConfigError
from inlay.core.overrides import apply_overrides, field_paths


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, kw_only=True)
class Inner:
    size_bytes: int = 1
    count: int = 2
    low: int = 0
    high: int = 10
    rate: float = 0.5

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ConfigError(f"low must be below high, got {self.low} and {self.high}")


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str = "x"
    flag: bool = False
    limit: int | None = None
    memory: str | int | None = None
    mode: Literal["fast", "exact"] = "fast"
    colour: Colour = Colour.RED
    names: tuple[str, ...] = ()
    pair: tuple[int, int] = (1, 2)
    weights: dict[str, float] = field(default_factory=dict)
    file: Path | None = None
    inner: Inner = field(default_factory=Inner)
    spare: Inner | None = None


@pytest.mark.parametrize(
    ("assignment", "attribute", "value"),
    [
        ("name=a=b", "name", "a=b"),
        ("name=", "name", ""),
        ("flag=yes", "flag", True),
        ("flag=False", "flag", False),
        ("limit=7", "limit", 7),
        ("limit=none", "limit", None),
        ("limit=1_000", "limit", 1000),
        ("memory=1GiB", "memory", "1GiB"),
        ("memory=17", "memory", 17),
        ("mode=exact", "mode", "exact"),
        ("colour=blue", "colour", Colour.BLUE),
        ("colour=BLUE", "colour", Colour.BLUE),
        ("names=a, b", "names", ("a", "b")),
        ('names=["a,b"]', "names", ("a,b",)),
        ("names=", "names", ()),
        ("pair=3,4", "pair", (3, 4)),
        ('weights={"a": 1.5}', "weights", {"a": 1.5}),
        ("file=a/b", "file", Path("a/b")),
    ],
)
def test_values_are_converted_to_the_type_of_the_field(
    assignment: str, attribute: str, value: object
) -> None:
    assert getattr(apply_overrides(Outer(), [assignment]), attribute) == value


def test_nested_fields_and_sizes() -> None:
    changed = apply_overrides(Outer(), ["inner.size_bytes=2KiB", "inner.rate=1e-3"])
    assert changed.inner == Inner(size_bytes=2048, rate=0.001)
    assert changed.spare is None


def test_fields_below_none_start_from_defaults() -> None:
    assert apply_overrides(Outer(), ["spare.count=9"]).spare == Inner(count=9)


def test_only_the_final_values_are_validated() -> None:
    changed = apply_overrides(Outer(), ["inner.low=20", "inner.high=30"])
    assert (changed.inner.low, changed.inner.high) == (20, 30)


def test_the_last_assignment_wins_and_the_original_stays() -> None:
    config = Outer()
    assert apply_overrides(config, ["limit=1", "limit=2"]).limit == 2
    assert config == Outer()
    assert apply_overrides(config, []) == config


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("nonsense", "write path.to.field=value"),
        ("=1", "write path.to.field=value"),
        ("inner.coumt=1", "inner has no field 'coumt'. Did you mean inner.count?"),
        ("count=1", "Did you mean inner.count?"),
        ("zzz=1", "fields: name, flag"),
        ("limit=many", "limit=many: must be a whole number"),
        ("flag=perhaps", "must be true or false"),
        ("inner.rate=x", "must be a number"),
        ("inner.size_bytes=3 apples", "must be a size such as 512MiB or 20GiB"),
        ("mode=exakt", "must be one of fast, exact. Did you mean exact?"),
        ("colour=green", "must be one of red, blue"),
        ("pair=1", "must be 2 values"),
        ("weights=1", "must be a JSON object"),
        ("inner=3", "a group of fields; set one of them, for example inner.size_bytes=..."),
        ("name.x=3", "is a single value"),
        ("inner.low=50", "low must be below high, got 50 and 10"),
    ],
)
def test_wrong_assignments_say_what_to_do(assignment: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_overrides(Outer(), [assignment])
    assert str(caught.value).startswith("--set ")
    assert message in str(caught.value)


def test_the_option_begins_the_message() -> None:
    with pytest.raises(ConfigError, match="^/set limit=x"):
        apply_overrides(Outer(), ["limit=x"], option="/set")


def test_a_group_and_its_field_cannot_both_be_set() -> None:
    for assignments in (["spare=none", "spare.count=1"], ["spare.count=1", "spare=none"]):
        with pytest.raises(ConfigError, match="set as"):
            apply_overrides(Outer(), assignments)


def test_field_paths() -> None:
    paths = field_paths(Outer)
    assert paths[:2] == ["name", "flag"]
    assert "inner.size_bytes" in paths and "spare.count" in paths
    assert "inner" not in paths
