"""Writes questions and answers where `inlay tune` reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def write_dataset(folder: Path, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Write pairs of question and answer as `name`, and enter it into dataset_info.json."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.jsonl"
    rows = [{"instruction": question, "output": answer} for question, answer in pairs]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    file.write_text(text, encoding="utf-8")
    index = folder / "dataset_info.json"
    entries = json.loads(index.read_text("utf-8")) if index.is_file() else {}
    entries[name] = {"file_name": file.name}
    index.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    print(f"{file}: {len(rows)} questions")
