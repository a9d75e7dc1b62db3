"""`python -m benchmarks stale`: how old each record is, and which figures of README are too old.

A record is as old as the commits since that touched what its case measures. A figure in README is
younger than `YOUNG_COMMITS` of them, or its row, item or paragraph carries the record's date.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.case import measured_paths
from benchmarks.history import Age, History, NoHistoryError, read_history
from benchmarks.printed import Printed, readme_numbers
from benchmarks.record import accepted_records

YOUNG_COMMITS = 150


@dataclass(frozen=True, kw_only=True)
class RecordAge:
    """An accepted record and how old it is.

    Attributes:
        name: case and kind, as `record:` comments have them.
        date: of the run, YYYY-MM-DD.
        age: None where this copy of the repository has no history.
    """

    name: str
    date: str
    age: Age | None

    @property
    def count(self) -> str:
        """The commits since, for people."""
        return "?" if self.age is None else str(self.age.commits)

    @property
    def note(self) -> str:
        """What makes their number less certain."""
        return f"  ({self.age.note})" if self.age and self.age.note else ""


def record_ages(history: History | None) -> list[RecordAge]:
    """All accepted records, oldest first."""
    ages = [
        RecordAge(
            name=f"{record['case']}/{record['kind']}",
            date=record["date"][:10],
            age=history.age(record, measured_paths(record["case"])) if history else None,
        )
        for record in accepted_records()
    ]
    return sorted(ages, key=lambda one: (-(one.age.commits if one.age else 0), one.date, one.name))


def too_old(numbers: Iterable[Printed], ages: Sequence[RecordAge]) -> list[str]:
    """A line for each place that quotes an old record without its date."""
    by_name = {one.name: one for one in ages}
    lines = []
    for number in numbers:
        record = by_name.get(name := f"{number.case}/{number.kind}")
        if record is None:
            lines.append(f"{number.where}  {name}  there is no such record")
        elif _is_old(record) and record.date not in number.around:
            lines.append(
                f"{number.where}  {name}  {record.count} commits since{record.note}: measure it "
                f"again, or write {record.date} beside it"
            )
    return list(dict.fromkeys(lines))


def print_stale(readme_only: bool) -> int:
    """Print both lists, or that of README alone.

    Returns:
        The exit status: 1 if README has figures that are too old.
    """
    history = None
    try:
        history = read_history()
    except NoHistoryError as error:
        print(f"commits are not counted here: {error}")
    ages = record_ages(history)
    violations = too_old(readme_numbers(), ages)
    if not readme_only:
        print(f"{'commits':>7}  {'date':10}  record")
        for one in ages:
            print(f"{one.count:>7}  {one.date}  {one.name}{one.note}")
        print()
    if violations:
        print(f"figures of README of records that are {YOUNG_COMMITS} or more commits old:")
        print("\n".join(f"  {line}" for line in violations))
    elif history is not None:
        print(f"README's figures are younger than {YOUNG_COMMITS} commits or carry their date")
    return 1 if violations else 0


def _is_old(record: RecordAge) -> bool:
    return record.age is not None and record.age.commits >= YOUNG_COMMITS
