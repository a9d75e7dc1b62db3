"""Reading the small text files of /proc and /sys, where any of them may be missing."""

from pathlib import Path


def read_text(file: Path) -> str | None:
    """The stripped content; None where it cannot be read."""
    try:
        return file.read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(file: Path) -> int | None:
    """A whole number; None for anything else, such as `max`."""
    text = read_text(file)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def parse_list(text: str) -> list[int]:
    """Numbers of a kernel list such as `0-3,8`."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        numbers += range(int(low), int(high or low) + 1)
    return numbers


def format_list(numbers: list[int]) -> str:
    """The reverse of `parse_list`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def key_values(text: str, separator: str = ":") -> dict[str, str]:
    """`key: value` lines; of repeated keys the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, divider, value = line.partition(separator)
        if divider:
            found.setdefault(key.strip(), value.strip())
    return found
