"""The /sys of machines that nobody has at hand, as far as the topology is read from it.

Each machine is a text file here. A line is `path = content`, where `\\n` stands for a new line, or
`path -> target` for a link. Links lead where the kernel's do, so the tree works at any place.
"""

from pathlib import Path

MACHINES = sorted(file.stem for file in Path(__file__).parent.glob("*.txt"))


def make_sysfs(machine: str, root: Path) -> Path:
    """Write the tree of a machine below `root`, an empty directory."""
    lines = (Path(__file__).parent / f"{machine}.txt").read_text().splitlines()
    for line in lines:
        if not line or line.startswith("#"):
            continue
        name, kind, content = line.partition(" -> ")
        if not kind:
            name, _, content = line.partition(" = ")
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind:
            file.symlink_to(content)
        else:
            file.write_text(content.replace("\\n", "\n") + "\n")
    broken = [file for file in root.rglob("*") if file.is_symlink() and not file.exists()]
    assert not broken, f"links of {machine} that lead nowhere: {broken}"
    return root
