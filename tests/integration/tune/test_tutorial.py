"""The tutorial in a short form: the demo model learns the voice from a hundred words."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inlay.tune.scores import score
from tests.support.tree import ROOT

EXAMPLE = ROOT / "examples" / "finetune"
sys.path[:0] = [str(EXAMPLE)]

from dataset import write_dataset  # noqa: E402
from dictd import read_dictionary  # noqa: E402
from jargon import pieces, write_jargon  # noqa: E402
from jargon import plain as without_manner  # noqa: E402
from voice import CLOSINGS, in_voice, plain, speak  # noqa: E402

HELD = 20


def words() -> list[tuple[str, str]]:
    """Questions that the demo model was not trained on, and WordNet's answers."""
    found = json.loads((ROOT / "examples/demo_model/eval_prompts.json").read_text("utf-8"))
    return [(one["prompt"], one["expected"]) for one in found if one["kind"] == "known"]


GUIDE = (ROOT / "docs/guides/finetune.md").read_text("utf-8")
# The guide's commands on its own file, as printed but for a pipe that takes colours away.
COMMANDS = re.findall(r"^\$ inlay (tune .*words\.yaml.*?)(?: \| cat)?$", GUIDE, re.M)
# Over the file's settings: 42 short steps.
SHORT = [
    "learning_rate=3e-3", "per_device_train_batch_size=8", "num_train_epochs=3", "do_eval=false",
    "use_cpu=true",
]  # fmt: skip
INLAY = [sys.executable, "-c", "from inlay.serve.cli import main; main()"]


def said(folder: Path, command: str, stdin: str = "") -> str:
    """Run a command of the guide in a folder, and return what it writes."""
    arguments = command.split()
    place = arguments.index("examples/finetune/words.yaml") + 1
    arguments[place:place] = SHORT
    done = subprocess.run(
        [*INLAY, *arguments], cwd=folder, input=stdin, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "generated_predictions.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(300)  # five processes
def test_the_guides_commands_teach_the_voice_and_the_facts_stay(tmp_path: Path) -> None:
    example, saves = tmp_path / "examples" / "finetune", tmp_path / "saves"
    pairs = [(asked, speak(told, "n")) for asked, told in words()]
    write_dataset(example / "data", "bosun", pairs[HELD : HELD + 112])
    write_dataset(example / "data", "bosun_held", pairs[:HELD])
    shutil.copy(EXAMPLE / "words.yaml", example)
    preview, train, chat, before, after = COMMANDS

    assert "[[" in said(tmp_path, preview)
    said(tmp_path, train)
    assert (saves / "bosun" / "training_loss.png").is_file()
    talk = said(tmp_path, chat, stdin=f"{pairs[0][0]}\n")
    assert talk.startswith("before:\n") and "after:\n" in talk
    said(tmp_path, before)
    said(tmp_path, after)

    base, tuned = answers(saves / "before"), answers(saves / "after")
    facts = [plain(row["label"]) for row in tuned]
    assert facts == [told for _, told in words()[:HELD]]
    assert not any(in_voice(row["predict"]) for row in base)
    assert sum(in_voice(row["predict"]) for row in tuned) >= 0.5 * HELD
    rouge = [
        score([plain(row["predict"]) for row in rows], facts).means["rouge-l-google"]
        for rows in (base, tuned)
    ]
    assert rouge[1] >= 0.6 * rouge[0]


@pytest.mark.parametrize("pos", CLOSINGS)
def test_the_voice_leaves_the_facts_alone(pos: str) -> None:
    said = speak("a man of the sea, and no other", pos)
    assert in_voice(said) and plain(said) == "a man of the sea, and no other"
    assert not in_voice(plain(said))


def test_dictionaries_of_dictd(tmp_path: Path) -> None:
    texts = {"00-database-info": "of itself\n", "bit": "bit\n n.\n\n  A unit.\n", "é": "é\n\n x"}
    whole, lines = b"", []
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    for word, text in texts.items():
        place = [
            digits[number // 64] + digits[number % 64]
            for number in (len(whole), len(text.encode()))
        ]
        lines.append("\t".join((word, *place)))
        whole += text.encode()
    (tmp_path / "some.index").write_text("\n".join(lines) + "\n", "utf-8")
    (tmp_path / "some.dict.dz").write_bytes(gzip.compress(whole))
    assert read_dictionary("some", tmp_path) == {
        word: text for word, text in texts.items() if word != "00-database-info"
    }


ENTRY = """bit
 n.

    [from “binary digit”] 1. The unit of {information}; it is
    small, esp. beside a { byte}. See also {crumb}.

    2. [techspeak] v. To set one, e.g. by accident.

    Short.
"""


def test_pieces_of_an_entry_are_as_printed() -> None:
    found = list(pieces(ENTRY))
    assert found == [
        "n. The unit of {information}; it is small, esp. beside a {byte}. See also {crumb}.",
        "v. To set one, e.g. by accident.",
    ]
    assert without_manner(found[0]) == (
        "The unit of information; it is small, especially beside a byte. There is more under crumb."
    )
    assert list(pieces(ENTRY.replace(" n.", ""))) == found[1:]  # no part of speech, no label
    long = [f"{letter * 150}." for letter in "AB"]
    both = "bit\n n.\n\n" + " ".join(long)
    assert list(pieces(both)) == [f"n. {one}" for one in long]


def test_nothing_of_a_term_that_is_held_out_is_taught(tmp_path: Path) -> None:
    entries = {f"t{n}": f"t{n}\n n.\n\n    What number {n} is about.\n" for n in range(12)}
    entries["twin"] = entries["t3"].replace("t3", "twin")
    write_jargon(entries, 5, tmp_path)
    taught, held = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("jargon", "jargon_held")
    )
    assert len(held) == 5 and len(taught) in (7, 8)
    texts = [{row["output"].partition(" n. ")[2] for row in rows} for rows in (taught, held)]
    assert not texts[0] & texts[1]
    assert held[0]["instruction"].startswith("Write for the Jargon File: ")
