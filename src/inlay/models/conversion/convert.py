"""From a model's directory to another one, which is packed or in plain bfloat16.

    convert(Path("models/mine"), Path("models/mine-int4"))
    convert(Path("models/mine"), Path("models/mine-bf16"), to="bf16")

Nothing of it is needed before serving: `load_model` reads what `convert` reads.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.core.model_config import QUANTIZATION_FILE, read_config, read_shape
from inlay.core.model_shape import ModelShape
from inlay.models.checkpoint import open_checked
from inlay.models.conversion.float_config import float_config
from inlay.models.conversion.float_product import FloatProduct
from inlay.models.conversion.packed_product import PackedProduct
from inlay.models.conversion.pieces import Product
from inlay.models.conversion.staging import Staging
from inlay.models.conversion.work import Progress, damaged_pieces, make_pieces
from inlay.models.formats import halves
from inlay.models.native_ops import NativeOps
from inlay.models.packed_metadata import PACKED_FILE
from inlay.models.placed import Placed
from inlay.models.tensor_weights import TensorWeights, open_checkpoint

DEFAULT_FORMAT = "int4:g32+bfloat16"
"""Experts in 4 bits, where nearly all weights are, and all else as published."""

# What is not copied: weights in any form, and where they lie.
_WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".inlay", ".bin", ".pt", ".pth", ".index.json")
_WEIGHT_NAMES = ("SHA256SUMS",)
_MOST_COPIED_BYTES = 128 << 20  # larger ones are weights in a form that is not known here


def convert(
    source: Path,
    target: Path,
    *,
    to: Literal["packed", "bf16"] = "packed",
    weight_format: str = DEFAULT_FORMAT,
    threads: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Write a model directory again in another form. Runs no code from it.

    What was begun and did not end, whatever ended it, goes on where it was when it is called with
    the same arguments, and gives the same bytes.

    Args:
        source: holds config.json and weights, in any form that `load_model` reads but packed.
        target: made if missing; empty, or what an earlier call left. Nothing has its final name
            in it before all is whole.
        to: `packed` writes `weights.inlay`, which is mapped when it is loaded; `bf16` what other
            programs open, sharded safetensors in bfloat16.
        weight_format: of packed weights, one of the CPU kernels, or two: `EXPERTS+REST`.
        threads: None takes the physical cores.
        progress: called now and then with bytes of the source read and in all, about.
        say: takes what is worth a line.

    Raises:
        ModelError: as `load_model`, and damage that is found on the way; what is done stays.
        ArgumentError: the target is the source, holds something else, or another process converts
            into it.
        ResourceError: the disk is too small.

    Cost: memory of a few bytes for each weight of an expert, or of 16 MiB, for each thread.
    """
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads: must be at least 1, got {threads}")
    shape = read_shape(source)
    if target.exists() and target.samefile(source):
        raise ArgumentError(f"{target} is the source, too: name another directory")
    if (source / PACKED_FILE).is_file():
        raise ArgumentError(
            f"{source} holds packed weights, which are not converted again: name the model that "
            "they were made from"
        )
    with Staging(target, say) as staging:
        experts, rest = halves(weight_format)
        if to == "packed" and not shape.experts and experts != rest:
            say(f"this model has no routed experts: all of it becomes {rest}")
        if to == "packed":
            product: Product = _packed(source, shape, weight_format)
            config = None
        else:
            tensors, fused = open_checked(source, shape)
            product = FloatProduct(shape, tensors, fused=fused)
            config = float_config(read_config(source))
        extras = {file.name: file.read_bytes() for file in small_files(source)}
        if config is not None:
            extras["config.json"] = config
            extras.pop(QUANTIZATION_FILE, None)
        write_product(
            product,
            staging,
            extras,
            source_stamp=stamp_of(source),
            threads=threads,
            progress=progress,
            say=say,
        )


def write_product(
    product: Product,
    staging: Staging,
    extras: Mapping[str, bytes],
    *,
    source_stamp: str = "",
    threads: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Make all of a product, and what lies beside it, and give it its final names."""
    if not staging.begin(product, source_stamp):
        say("the conversion is there already")
        return
    journal = staging.journal
    if not journal.sealed:
        threads = threads or kernels.usable_processors()
        with (
            staging.writing(),
            ThreadPoolExecutor(threads, "inlay-convert") as pool,
            staging.files(product.files) as files,
        ):
            if journal.done:
                say(f"going on: {len(journal.done)} of {len(product.pieces)} pieces are there")
                for number in damaged_pieces(product.pieces, files, journal.done, pool):
                    say(f"{product.pieces[number].name} is not as it was written: made again")
                    del journal.done[number]
            make_pieces(product, files, journal, pool, threads, progress)
            more = product.seal(files, pool.map)
            for name, data in {**extras, **more}.items():
                staging.write(name, data)
            staging.seal()
    staging.finish()


def _packed(source: Path, shape: ModelShape, weight_format: str) -> PackedProduct:
    placed = Placed.whole(NativeOps(), shape)
    opened = open_checkpoint(source, shape, placed, weight_format, keep_blocks=False)
    assert isinstance(opened.source, TensorWeights)
    return PackedProduct(shape, opened, opened.source)


def _is_weights(file: Path) -> bool:
    return file.name.endswith(_WEIGHT_SUFFIXES) or file.name in _WEIGHT_NAMES


def small_files(source: Path) -> Iterator[Path]:
    """What lies beside the weights of a model, and is copied."""
    for file in sorted(source.iterdir()):
        if _is_weights(file) or file.name.startswith(".") or not file.is_file():
            continue
        if file.stat().st_size <= _MOST_COPIED_BYTES:
            yield file


def stamp_of(source: Path) -> str:
    """Of the weights' files: a shard that was fetched again may have the fingerprint of before."""
    found = [(file.name, file.stat()) for file in sorted(source.iterdir()) if _is_weights(file)]
    text = repr([(name, about.st_size, about.st_mtime_ns) for name, about in found])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
