"""Where masters are, as users write it."""

import pytest

from inlay.core.errors import ConfigError, StoreUnavailable
from inlay.store.address import Cluster, numeric_addresses, parse_cluster, parse_masters


@pytest.mark.parametrize(
    ("text", "masters"),
    [
        ("127.0.0.1:50051", (("127.0.0.1", 50051),)),
        ("host-a", (("host-a", 50051),)),
        ("a:1,b:2", (("a", 1), ("b", 2))),
        ("[::1]:7", (("::1", 7),)),
    ],
)
def test_addresses_are_read(text: str, masters: tuple[tuple[str, int], ...]) -> None:
    assert parse_masters(text) == masters


def test_a_cluster_is_read_and_written_alike() -> None:
    cluster = parse_masters("etcd://a:1,b/prod")
    assert cluster == Cluster(members=(("a", 1), ("b", 2379)), name="prod")
    assert str(cluster) == "etcd://a:1,b:2379/prod"
    assert parse_cluster("etcd://a").name == "inlay"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no address of a master"),
        ("a:b", "'a:b'"),
        ("a:70000", "70000"),
        ("a:1,,b:2", "write HOST:PORT"),
        ("http://a:1/x", "names no etcd"),
        ("etcd:///x", "names no etcd"),
        ("etcd://a/x/y", "'x/y'"),
        ("etcd://user@a/x", "'user@a'"),
    ],
)
def test_what_is_no_address_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_masters(text)


def test_names_of_hosts_become_addresses() -> None:
    found = numeric_addresses([("localhost", 7), ("127.0.0.1", 7), ("::1", 8)])
    assert "127.0.0.1:7" in found and found[-1] == "[::1]:8"
    assert len(found) == len(set(found))
    with pytest.raises(StoreUnavailable, match="'no.such.host.invalid' names no host"):
        numeric_addresses([("no.such.host.invalid", 7)])
