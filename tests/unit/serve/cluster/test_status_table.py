"""The table of a deployment."""

import io

import pytest
from rich.console import Console

from inlay.cluster.control import ProcessStatus, Status
from inlay.serve.cluster.status_table import duration, status_table


def test_each_process_has_a_row() -> None:
    found = Status(
        deployment="chat",
        model="org/model",
        url="http://127.0.0.1:8000",
        pid=7,
        uptime_s=300,
        processes=(
            ProcessStatus(
                name="decode-0", kind="instance", role="decode", state="starting", run=3,
                since_s=2, where="b", note="was killed by SIGKILL",
            ),
            ProcessStatus(
                name="dispatcher-0", kind="dispatcher", state="ready", pid=12, run=1, since_s=250,
                address="http://127.0.0.1:8000",
            ),
            ProcessStatus(
                name="decode-1", kind="instance", role="decode", state="ready", run=1,
                refused="the model's fingerprint is g",
            ),
        ),
    )  # fmt: skip
    output = io.StringIO()
    Console(file=output, width=80).print(status_table(found))
    head, _, first, second, third, note, refused = (
        line.split() for line in output.getvalue().splitlines()
    )
    assert " ".join(head).startswith("chat serves org/model at http://127.0.0.1:8000, up 5 min")
    assert first == ["decode-0", "starting", "2", "s", "decode", "-", "3", "b"]
    assert second[-3:] == ["12", "1", "127.0.0.1:8000"]
    assert third[:2] == ["decode-1", "refused"]
    assert " ".join(note) == "decode-0 was killed by SIGKILL"
    assert " ".join(refused) == "decode-1 is refused: the model's fingerprint is g"


def test_versions_of_weights_have_a_column_once_there_are_some() -> None:
    def rows(*versions: str) -> list[list[str]]:
        found = Status(
            deployment="chat", model="m", url="http://127.0.0.1:8000", pid=7, uptime_s=3,
            processes=(
                *(
                    ProcessStatus(
                        name=f"all-{n}", kind="instance", state="ready", address="ipc:///s/x",
                        weight_version=version,
                    )
                    for n, version in enumerate(versions)
                ),
                ProcessStatus(
                    name="dispatcher-0", kind="dispatcher", state="ready", address="http://a:1"
                ),
            ),
        )  # fmt: skip
        output = io.StringIO()
        Console(file=output, width=120).print(status_table(found))
        return [line.split() for line in output.getvalue().splitlines()[1:]]

    assert "weights" not in rows("", "")[0]
    head, *others = rows("step-7", "")
    assert head[-1] == "weights"
    assert [row[-1] for row in others] == ["step-7", "first", "-"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
