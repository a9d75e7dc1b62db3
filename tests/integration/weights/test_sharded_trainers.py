"""Trainers in processes of their own, each with parts of tensors, as one version in a directory."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay.core.errors import WeightsError, WeightsMismatchError
from inlay.transfer import TransferEngine
from inlay.weights import DirectoryLanding, Held, MemoryLanding, Part, Publisher, PullConfig, pull

# A trainer divides rows as torch.chunk does (the last one may have fewer, or none), columns of
# what takes the width, experts, and holds norms as all others do.
TRAINER = """
import sys
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file
from inlay.transfer import TransferEngine
from inlay.weights import Part, Publisher

file, number, count, versions = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
with TransferEngine(transports=("tcp",)) as engine, Publisher(engine, "m") as publisher:
    for version in versions:
        mine, parts = {}, {}
        for name, whole in load_file(file.with_name(f"{version}.safetensors")).items():
            axis = 1 if "down" in name or "o_proj" in name else 0
            if whole.ndim == 1:
                mine[name] = whole
                continue
            each = -(-whole.shape[axis] // count)
            first = min(number * each, whole.shape[axis])
            length = min(each, whole.shape[axis] - first)
            rows = np.arange(first, first + length)
            mine[name] = np.ascontiguousarray(whole.take(rows, axis))
            corner = [0] * whole.ndim
            corner[axis] = first
            parts[name] = Part(tuple(whole.shape), tuple(corner))
        publisher.publish(version, mine, parts=parts)
        print(publisher.address, flush=True)
        sys.stdin.readline()
"""
TENSORS = {
    "model.embed_tokens.weight": torch.randn(97, 40),
    "model.layers.0.self_attn.o_proj.weight": torch.randn(40, 65),
    "model.layers.0.mlp.experts.gate_up_proj": torch.randn(5, 30, 8),
    "model.layers.0.mlp.experts.down_proj": torch.randn(4, 33, 7),
    "model.norm.weight": torch.randn(40),
    "two.rows": torch.randn(2, 3),
    "codes": torch.arange(35, dtype=torch.uint8).view(7, 5),
}
O_PROJ = "model.layers.0.self_attn.o_proj.weight"


class Trainers:
    """Processes, and the addresses at which they publish."""

    def __init__(self, stack: ExitStack, directory: Path, count: int, *versions: str) -> None:
        file = directory / "1.safetensors"
        self.processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", TRAINER, str(file), str(n), str(count), *versions],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for n in range(count)
        ]
        for process in self.processes:
            stack.callback(process.kill)
        self.addresses = self.published()

    def published(self) -> list[str]:
        """Wait until all have published the next version."""
        return [process.stdout.readline().strip() for process in self.processes]  # type: ignore[union-attr]

    def go_on(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        self.published()


@contextmanager
def pulled(addresses: list[str], landing: DirectoryLanding, **more: object) -> Iterator[Held]:
    with TransferEngine() as engine:
        config = PullConfig(timeout_s=20)
        with pull(engine, addresses, "m", landing=landing, config=config, **more) as held:  # type: ignore[arg-type]
            yield held


def found_in(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def check(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("count", [2, 3])
def test_parts_are_put_together(tmp_path: Path, count: int) -> None:
    changed = {**TENSORS, O_PROJ: TENSORS[O_PROJ] + 1}
    save_file(TENSORS, tmp_path / "1.safetensors")
    save_file(changed, tmp_path / "2.safetensors")
    with ExitStack() as stack:
        trainers = Trainers(stack, tmp_path, count, "1", "2")
        with pulled(trainers.addresses, DirectoryLanding(tmp_path / "a")) as held:
            check(found_in(tmp_path / "a"), TENSORS)
            assert set(held.report.taken_bytes) == set(trainers.addresses)
            trainers.go_on()
            with pulled(
                trainers.addresses, DirectoryLanding(tmp_path / "b"), previous=held
            ) as newer:
                check(found_in(tmp_path / "b"), changed)
                assert newer.report.kept_bytes >= TENSORS["model.embed_tokens.weight"].nbytes
        landing = DirectoryLanding(tmp_path / "bf16", dtype="BF16")
        with pulled(list(reversed(trainers.addresses)), landing):
            check(
                found_in(tmp_path / "bf16"),
                {
                    name: tensor.bfloat16() if tensor.is_floating_point() else tensor
                    for name, tensor in changed.items()
                },
            )


def test_what_nobody_holds_is_named(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "1.safetensors")
    with ExitStack() as stack:
        trainers = Trainers(stack, tmp_path, 3, "1")
        with pytest.raises(WeightsMismatchError) as caught:
            with pulled([trainers.addresses[0], trainers.addresses[2]], _landing(tmp_path)):
                pass
        assert "nobody holds codes[3:6, 0:5]: the publishers hold 20 of 35" in str(caught.value)
        assert not [one for one in tmp_path.iterdir() if one.name.startswith(("x", ".x"))]
        first, *_ = trainers.processes
        first.kill()
        first.wait()
        with pytest.raises(Exception, match=trainers.addresses[0]):
            with pulled(trainers.addresses, _landing(tmp_path)):
                pass


def _landing(tmp_path: Path) -> DirectoryLanding:
    return DirectoryLanding(tmp_path / "x")


def test_a_trainer_that_ends_meanwhile(tmp_path: Path) -> None:
    """What it alone had is named, when nothing comes for the time that is given."""
    large = {"w": torch.randn(2048, 1024)}
    save_file(large, tmp_path / "1.safetensors")
    with ExitStack() as stack:
        trainers = Trainers(stack, tmp_path, 2, "1")
        last = trainers.processes[1]

        def kill(done: int, total: int) -> None:
            last.kill()
            last.wait()

        with TransferEngine() as engine:
            config = PullConfig(bucket_bytes=1 << 20, per_holder=1, timeout_s=2)
            try:
                pull(
                    engine, trainers.addresses, "m", landing=_landing(tmp_path), config=config,
                    progress=kill,
                ).close()  # fmt: skip
            except WeightsError as error:
                assert "did not come, w[1024:2048, 0:1024] among them" in str(error)
            else:
                check(found_in(tmp_path / "x"), large)  # it had sent all of it already


def test_equal_copies_are_one_and_others_are_refused(tmp_path: Path) -> None:
    norm, rows = np.ones(40, np.float32), np.arange(24, dtype=np.float32).reshape(6, 4)
    with ExitStack() as stack:
        publishers = [
            stack.enter_context(Publisher(stack.enter_context(TransferEngine()), "m"))
            for _ in range(2)
        ]
        for number, publisher in enumerate(publishers):
            mine = {"norm": norm, "rows": rows[3 * number : 3 * number + 3]}
            parts = {"rows": Part((6, 4), (3 * number, 0))}
            publisher.publish("1", mine, parts=parts)
            publisher.publish("2", {**mine, "norm": norm + number}, parts=parts)
            overlapping = rows[2 * number : 2 * number + 4]
            publisher.publish(
                "3", {"rows": overlapping}, parts={"rows": Part((6, 4), (2 * number, 0))}
            )
        addresses = [publisher.address for publisher in publishers]
        with TransferEngine() as engine:
            for version, message in (
                ("2", "publishers hold norm with unlike contents"),
                ("3", r"hold rows\[2:6, 0:4\] and rows\[0:4, 0:4\]"),
            ):
                with pytest.raises(WeightsMismatchError, match=message):
                    pull(engine, addresses, "m", landing=MemoryLanding(), version=version)
        for number, publisher in enumerate(publishers):
            both = {"norm": norm, "rows": rows[3 * number : 3 * number + 3]}
            publisher.publish("4", both, parts={"rows": Part((6, 4), (3 * number, 0))})
        with pulled(addresses, DirectoryLanding(tmp_path / "d"), version="4") as held:
            assert len(held.manifest.by_name["norm"]) == 1
            # Rows lie as they were published: who comes later has them from here, too.
            with pulled(addresses, DirectoryLanding(tmp_path / "e"), version="4"):
                for name in ("d", "e"):
                    found = found_in(tmp_path / name)
                    assert np.array_equal(found["rows"].numpy(), rows)
                    assert np.array_equal(found["norm"].numpy(), norm)
