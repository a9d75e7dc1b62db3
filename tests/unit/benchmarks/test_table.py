"""The page of all measured lines."""

import re
from typing import Any

import pytest

from benchmarks import table
from benchmarks.table import code, escaped, page_text, without_counts


def entry(**fields: Any) -> dict[str, Any]:
    return {
        "name": "rate", "params": {"block_bytes": 4096}, "unit": "GB/s", "better": "higher",
        "value": 25.812, "met": None,
    } | fields  # fmt: skip


def record(kind: str, *entries: dict[str, Any], case: str = "selftest/copy") -> dict[str, Any]:
    return {
        "case": case,
        "kind": kind,
        "date": "2026-11-21T09:00:00+00:00",
        "machine": {"cpu": "Intel(R) Xeon(R) | x", "cores": 2, "memory_gib": 23.5, "load_1m": 0.2},
        "measurements": list(entries),
    }


def rows(page: str) -> list[list[str]]:
    """The cells of all measured lines."""
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_a_line_has_all_that_is_asked_of_it() -> None:
    whole = entry(
        limit={"name": "copy", "value": 26.0},
        of_limit=0.994,
        of_peer={"nixl 1.5": 1.52, "mooncake 0.3": 10.1},
        target={"of_limit": 0.9, "of_peer": {"nixl": 1.1}, "never_behind": True},
        met=False,
        simulated=True,
    )
    page = page_text([record("amx", whole)], {"selftest/copy/amx": "12"})
    assert rows(page) == [
        [
            "`rate{block_bytes=4096}` (simulated)",
            "25.8 GB/s",
            "99 % of copy",
            "1.52x nixl 1.5",
            "**missed**: `of_limit 0.9`, `of_peer nixl 1.1`, `never_behind`",
            "`amx`",
            "2026-11-21",
            "12",
        ]
    ]
    assert "| [selftest/copy](#selftestcopy) | 1 | 0 | 1 | 0 | `amx` |" in page
    assert "[`amx`](../benchmarks/results/selftest/copy/amx.json): Intel(R) Xeon(R) \\| x" in page


def test_a_line_without_a_result_says_so() -> None:
    ((_, value, *_),) = rows(page_text([record("amx", entry(value=None))], {}))
    assert value == "no result"


def test_kinds_of_one_line_stand_together() -> None:
    first, second = entry(), entry(params={"block_bytes": 8192})
    page = page_text([record("amx", first, second), record("avx2", first, second)], {})
    assert [(row[0][18:22], row[5]) for row in rows(page)] == [
        ("4096", "`amx`"),
        ("4096", "`avx2`"),
        ("8192", "`amx`"),
        ("8192", "`avx2`"),
    ]


def test_cases_are_grouped_by_area(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "load_declaration", lambda case: {"about": f"of {case}"})
    records = [record("amx", entry(), case=case) for case in ("a/x", "a/y", "b/x")]
    headings = re.findall(r"^##+ .*$", page_text(records, {}), re.MULTILINE)
    assert headings == ["## a", "### a/x", "### a/y", "## b", "### b/x"]


def test_signs_of_markdown_mean_themselves() -> None:
    odd = entry(
        params={"way": "a|b`c"},
        unit="1|2",
        of_peer={"p <b> *x* [y]": 1.0},
    )
    ((name, value, _, peer, *rest),) = rows(page_text([record("amx", odd)], {}))
    assert name == r"`` rate{way=a\|b`c} ``"
    assert value == r"25.8 1\|2"
    assert peer == r"1x p \<b\> \*x\* \[y\]"
    assert len(rest) == 4


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a_b _c_", r"a_b \_c\_"), ("two\nlines", "two lines"), ("R&D ~1", r"R\&D \~1")],
)
def test_escapes(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_code_with_backticks_has_a_longer_fence() -> None:
    assert code("a``b") == "``` a``b ```"


def test_only_the_count_of_commits_is_left_out_of_a_comparison() -> None:
    records = [record("amx", entry(), entry(params={"way": "a|b"}))]
    young = page_text(records, {"selftest/copy/amx": "1"})
    old = page_text(records, {"selftest/copy/amx": "123"})
    assert young != old
    assert without_counts(young) == without_counts(old) == page_text(records, {})
    other = page_text([record("amx", entry(value=25.9), entry(params={"way": "a|b"}))], {})
    assert without_counts(young) != other


@pytest.mark.parametrize(
    ("value", "text"),
    [(25.812, "25.8"), (8351.2, "8,351"), (574.03, "574"), (0.00042, "0.00042"), (0.0, "0")],
)
def test_numbers_are_as_exact_as_needed(value: float, text: str) -> None:
    assert table._number(value) == text
