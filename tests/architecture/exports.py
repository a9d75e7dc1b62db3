"""What each package exports. `python -m tests.architecture.exports` rewrites exports.toml.

A changed export is a change of the public interface: the rewritten table shows it in the diff.
"""

import ast
from pathlib import Path

from tests.support.tree import PACKAGE, packages

TABLE = Path(__file__).with_name("exports.toml")


def declared(package: str) -> list[str] | None:
    """The literal `__all__` of a package's `__init__`, sorted; None if there is none.

    A package whose `__init__` is a docstring alone exports nothing: its modules are its interface.
    """
    init = ast.parse((PACKAGE / package / "__init__.py").read_text())
    if len(init.body) == 1 and ast.get_docstring(init) is not None:
        return []
    for node in init.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return sorted(ast.literal_eval(node.value))
    return None


def main() -> None:
    """Write the table as the packages declare it now."""
    lines = ["# The exports of each package; `python -m tests.architecture.exports` renews it."]
    for package in ["", *packages()]:
        title = f"inlay.{package}".rstrip(".")
        lines += ["", f'["{title}"]', "all = ["]
        lines += [f'  "{name}",' for name in declared(package) or []]
        lines += ["]"]
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
