"""Settings of a run and its data, as the command line shows them."""

import json
from pathlib import Path

from tests.e2e.test_cli_errors import assert_one_line, inlay
from tests.support.tree import ROOT

DEMO = ROOT / "src/inlay/models/demo"
SETTINGS = f"""
model_name_or_path: {DEMO}
dataset: words
use_kt: true
report_to: none
"""


def test_a_row_with_its_mask(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text('{"words": {"file_name": "words.json"}}')
    rows = [{"instruction": f"Define {word}.", "output": f"{word} it is."} for word in "abc"]
    (tmp_path / "words.json").write_text(json.dumps(rows, indent=0))
    file = tmp_path / "run.yaml"
    file.write_text(SETTINGS)
    command = ("tune", "preview", str(file), f"dataset_dir={tmp_path}")

    found = inlay(*command, "packing=true", "val_size=1")
    assert found.returncode == 0, found.stderr
    shown = found.stdout.split("\n-------- next sample\n")
    assert len(shown) == 2
    assert shown[0].startswith("<|user|> Define a.<|assistant|>[[a it is.<|end|>]]")
    assert "training: 2 samples in 1 rows" in found.stdout
    assert "evaluation: 1 samples" in found.stdout
    assert "use_kt: routed experts are computed by" in found.stderr

    assert "Define c." in inlay(*command, "--row", "2").stdout
    assert_one_line(inlay(*command, "--row", "3"), 2, "--row 3: there are 3, from 0")
    assert_one_line(inlay(*command, "dataset=word"), 2, "did you mean words?")
    assert_one_line(inlay(*command, "lora_rnak=4"), 2, "did you mean lora_rank")
    (tmp_path / "words.json").write_text(json.dumps([*rows, {"instruction": "d", "output": ""}]))
    assert_one_line(inlay(*command), 1, "words.json, line 1: column output: is empty")


def test_the_list_of_keys() -> None:
    found = inlay("tune", "keys")
    assert found.returncode == 0, found.stderr
    words = " ".join(found.stdout.split())
    for part in ("lora_rank int 8 width of the adapters", "kt_backend", "use_dora", "chunk_size"):
        assert part in words
