from pathlib import Path

import pytest

from inlay.core.errors import ConfigError
from inlay.core.hardware import (
    catalogue_cpus,
    catalogue_gpus,
    machine_named,
    read_machine,
    write_machine,
)

NODE = """
[[nodes]]
memory_gb = 64
bandwidth_gbs = 40
tflops = { fp32 = 1, bf16 = 2 }
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "machine.toml"
    file.write_text(text)
    return file


def test_every_figure_of_the_catalogue_has_its_source() -> None:
    devices = catalogue_cpus() | catalogue_gpus()
    assert {"h800", "h20", "h100", "h200", "a100", "a800", "l20", "4090", "5090", "mi300x"} <= set(
        devices
    )
    for name, device in devices.items():
        wanted = {"memory_gb", "bandwidth_gbs", "tflops", "price_usd"}
        wanted |= {"cores"} if device.cores else {"link_gbs", "peer_gbs", "network_gbs"}
        assert wanted <= set(device.sources), name
        assert all(source.strip() for source in device.sources.values()), name


def test_a_name_combines_sockets_and_gpus() -> None:
    machine = machine_named("Xeon-SPR-2s+2x4090+h20")
    assert [gpu.memory_gb for gpu in machine.gpus] == [24, 24, 96]
    assert machine.host.memory_gb == 2 * 512
    assert machine.host.bandwidth_gbs == pytest.approx(2 * 220)  # what the probe read, not 307
    assert machine.host.tflops["int8"] == pytest.approx(2 * 147.5)
    assert machine.origin == "catalogue"


def test_gpus_hold_layers_together_and_work_one_after_the_other() -> None:
    gpu = machine_named("epyc-genoa+4x4090").gpu
    assert gpu is not None
    assert (gpu.memory_gb, gpu.bandwidth_gbs) == (4 * 24, 1008)
    assert machine_named("epyc-genoa").gpu is None


def test_machines_that_messages_name_exist() -> None:
    with pytest.raises(ConfigError) as refusal:
        machine_named("abacus")
    _, _, examples = str(refusal.value).partition("Write for example ")
    names = [word.strip(",") for word in examples.split() if "+" in word]
    assert len(names) == 2
    for name in names:
        assert machine_named(name).gpus


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xeon-sp", "no processor 'xeon-sp' .did you mean xeon-spr"),
        ("xeon-spr+h801", "no GPU 'h801' .did you mean h800"),
        ("xeon-spr+0xh800", "no GPU '0xh800'"),
        ("xeon-spr+", "no GPU ''"),
        ("", "no processor ''"),
        ("h100", "it has xeon-spr, epyc-milan"),
    ],
)
def test_unknown_hardware_is_named_with_what_there_is(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        machine_named(name)


@pytest.mark.parametrize("name", ["xeon-spr-2s+h800", "epyc-milan"])
def test_a_machine_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    machine = machine_named(name)
    write_machine(machine, tmp_path / "new" / "m.toml")
    again = read_machine(tmp_path / "new" / "m.toml")
    assert (again.name, again.nodes, again.gpus) == (machine.name, machine.nodes, machine.gpus)
    assert again.origin == "file"  # only a measurement keeps its word


def test_a_file_takes_what_it_leaves_out_from_the_catalogue(tmp_path: Path) -> None:
    text = (
        '[[nodes]]\nlike = "epyc-genoa"\ncount = 2\nmemory_gb = 1536\n'
        '[[gpus]]\nlike = "4090"\nlink_gbs = 16\n'
    )
    machine = read_machine(written(tmp_path, text))
    assert [node.memory_gb for node in machine.nodes] == [1536, 1536]
    assert machine.host.bandwidth_gbs == pytest.approx(2 * 460.8)
    assert machine.gpus[0].link_gbs == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = 1", "write one \\[\\[nodes\\]\\]"),
        ("", "at least one \\[\\[nodes\\]\\]"),
        ("[[nodes]", "not TOML"),
        ('[[nodes]]\nlike = "epyc"', "'epyc' is not one of xeon-spr"),
        ("[[nodes]]\nbandwidth_gbs = 1\ntflops = { fp32 = 1 }", "memory_gb is missing"),
        (NODE.replace("40", "0"), "bandwidth_gbs is 0.*above 0"),
        (NODE.replace("40", "nan"), "bandwidth_gbs is nan"),
        (NODE.replace("fp32", "fp31"), "tflops must give some of fp32"),
        (NODE + "count = 0", "count is 0"),
        (NODE + "colour = 1", "unknown field 'colour'"),
        (NODE + "efficiency = { reading = 1 }", "efficiency is a table of"),
        (NODE + "efficiency = { read = 1 }", "efficiency.read is a table"),
        (NODE + "efficiency = { read = { int8 = -1 } }", "efficiency.read.int8 is -1"),
        (NODE + "efficiency = { attention_read = 0 }", "efficiency.attention_read is 0"),
    ],
)
def test_files_that_say_nothing_sensible(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_machine(written(tmp_path, text))


def test_disks_are_kept(tmp_path: Path) -> None:
    machine = read_machine(written(tmp_path, "disk_gb = 8000\ndisk_gbs = 12\n" + NODE))
    write_machine(machine, tmp_path / "again.toml")
    again = read_machine(tmp_path / "again.toml")
    assert (again.disk_gb, again.disk_gbs) == (8000, 12)
    with pytest.raises(ConfigError, match="disk_gbs is -1"):
        read_machine(written(tmp_path, "disk_gbs = -1\n" + NODE))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_machine(tmp_path / "none.toml")
