"""`_native.pyi`, the references and the extension have the same names and parameters."""

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import inlay
from inlay.cluster._reference import PrefixIndex
from inlay.cluster._reference_seen import SeenPrompts
from inlay.cluster._reference_state import State
from inlay.cluster._reference_timing import Timing
from inlay.kernels import reference

STUB = ast.parse(Path(inlay.__file__).with_name("_native.pyi").read_text())
RUNTIME = {
    "formats", "isa_variants", "selected_isa", "request_isa", "cpu_features",
    "measure_peak", "memory_probe_bytes", "usable_processors", "topology", "set_topology",
    "num_threads", "set_num_threads", "spin_us", "set_spin_us",
}  # fmt: skip


def public(names: list[str]) -> list[str]:
    return sorted(name for name in names if not name.startswith("_"))


def stub_class(path: str) -> ast.ClassDef:
    body: list[ast.stmt] = STUB.body
    for part in path.split("."):
        (found,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == part)
        body = found.body
    return found


def members(node: ast.ClassDef) -> dict[str, ast.stmt]:
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {child.name: child for child in node.body if isinstance(child, kinds)}


def native_parameters(function: object) -> list[str]:
    signature = function.__nb_signature__[0][0]  # type: ignore[attr-defined]
    inside = re.sub(r"\[[^\]]*\]", "", signature[signature.index("(") + 1 : signature.rindex(")")])
    names = [part.split(":")[0].split("=")[0].strip() for part in inside.split(",")]
    return [name for name in names if name and name != "/"]


def native(name: str) -> ModuleType:
    from inlay import _native

    module: ModuleType = getattr(_native, name)
    return module


@pytest.mark.parametrize(
    "module", ["kernels", "block_hash", "transfer", "transfer_policy", "store"]
)
def test_stub_names_everything(module: str) -> None:
    assert public(list(members(stub_class(module)))) == public(dir(native(module)))


def test_stub_has_the_parameters_of_every_function() -> None:
    for module in ("kernels", "block_hash"):
        for name, node in members(stub_class(module)).items():
            if isinstance(node, ast.FunctionDef):
                stubbed = [argument.arg for argument in node.args.args]
                assert stubbed == native_parameters(getattr(native(module), name)), name


TRANSFER_CLASSES = [
    name for name, node in members(stub_class("transfer")).items() if isinstance(node, ast.ClassDef)
]


def test_stub_and_reference_have_the_members_of_the_prefix_index() -> None:
    stubbed = members(stub_class("cluster.PrefixIndex"))
    native_class = native("cluster").PrefixIndex
    assert public(list(stubbed)) == public(dir(native_class)) == public(dir(PrefixIndex))
    for member, node in stubbed.items():
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and member != "__len__":
            arguments = [argument.arg for argument in node.args.args]
            assert native_parameters(getattr(native_class, member)) == arguments
            assert list(inspect.signature(getattr(PrefixIndex, member)).parameters) == arguments


@pytest.mark.parametrize("reference", [SeenPrompts, State, Timing])
def test_stub_and_reference_have_the_members_of_what_dispatch_keeps(reference: type) -> None:
    stubbed = members(stub_class(f"cluster.{reference.__name__}"))
    native_class = getattr(native("cluster"), reference.__name__)
    assert public(list(stubbed)) == public(dir(native_class))
    for member, node in stubbed.items():
        assert isinstance(node, ast.FunctionDef)
        if not node.decorator_list:
            arguments = [argument.arg for argument in node.args.args]
            assert native_parameters(getattr(native_class, member)) == arguments, member
            assert list(inspect.signature(getattr(reference, member)).parameters) == arguments
        elif not hasattr(reference, member):
            assert member in reference.__init__.__code__.co_names  # type: ignore[misc]


@pytest.mark.parametrize("name", TRANSFER_CLASSES)
def test_stub_has_the_members_and_parameters_of_the_transfer_classes(name: str) -> None:
    found = getattr(native("transfer"), name)
    stubbed = members(stub_class(f"transfer.{name}"))
    assert public(list(stubbed)) == public(dir(found))
    for member, node in stubbed.items():
        assert isinstance(node, ast.FunctionDef)
        if node.decorator_list or member == "__buffer__":
            continue
        arguments = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
        taken = native_parameters(getattr(found, member))
        if member.startswith("__") and member != "__init__":
            assert len(taken) == len(arguments), f"{name}.{member}"  # nobody names these
        elif (name, member) != ("Engine", "__init__"):
            assert [part for part in taken if part != "*"] == arguments, f"{name}.{member}"


@pytest.mark.parametrize(
    "name", ["LinearWeight", "ExpertWeights", "KvGeometry", "Pending", "SavedMoe", "HandOver"]
)
def test_stub_has_the_members_of_every_class(name: str) -> None:
    stubbed = public(list(members(stub_class(f"kernels.{name}"))))
    assert stubbed == public(dir(getattr(native("kernels"), name)))
    form = getattr(reference, name)
    init = vars(form).get("__init__")
    assigned = {*init.__code__.co_names, *init.__annotations__} if init else set()
    assert set(stubbed) <= set(dir(form)) | assigned


def test_stub_has_the_members_and_parameters_of_the_simulated_world() -> None:
    found = native("sim").World
    stubbed = members(stub_class("sim.World"))
    assert public(list(stubbed)) == public(dir(found))
    for member, node in stubbed.items():
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and member != "__init__":
            arguments = [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)]
            taken = [part for part in native_parameters(getattr(found, member)) if part != "*"]
            assert taken == arguments, member


def test_references_have_the_parameters_of_the_kernels() -> None:
    for module in ("kernels", "block_hash"):
        for name, node in members(stub_class(module)).items():
            if isinstance(node, ast.FunctionDef) and name not in RUNTIME:
                stubbed = [argument.arg for argument in node.args.args]
                assert stubbed == list(inspect.signature(getattr(reference, name)).parameters)
