from benchmarks import machine


def test_machine_says_where_it_was_measured() -> None:
    found = machine.machine()
    assert found["isa"] in machine.ISA_FLAGS
    assert {"cpu", "cores", "memory_gib", "load_1m"} <= found.keys()


def test_versions_leave_out_what_is_absent() -> None:
    found = machine.versions("no-such-package", "hypothesis")
    assert "no-such-package" not in found and "hypothesis" in found
