import msgspec
import pytest
import zmq

from inlay.core.errors import AddressInUseError, ConfigError
from inlay.core.instance_setup import Failed, InstanceLine, InstanceSetup, Ready, split_address
from inlay.core.instance_socket import connect_instance, listen_for_dispatchers, new_socket


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, r"instance\.name must have 1 to 200 printable characters, got ''"),
        ({"name": "a\nb"}, "printable"),
        ({"listen": "7000"}, r"instance\.listen is '7000': write host:port"),
        ({"listen": "127.0.0.1:70000"}, "write host:port"),
        ({"listen": "0.0.0.0:0"}, r"set instance\.host"),
        ({"listen": "10.0.0.2:0", "host": "127.0.0.1"}, "both must be loopback"),
        ({"host": "10.0.0.2"}, "both must be loopback"),
    ],
)
def test_setups_that_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        InstanceSetup(**({"name": "p0"} | fields))


def test_a_setup_from_plain_data():
    setup = msgspec.json.decode(
        b'{"name": "p0", "role": "prefill", "listen": "[::1]:7"}', type=InstanceSetup
    )
    assert (setup.role, setup.reached_at) == ("prefill", "::1")
    with pytest.raises(msgspec.ValidationError, match="rolle"):
        msgspec.json.decode(b'{"name": "p0", "rolle": "prefill"}', type=InstanceSetup)


def test_lines_name_their_state():
    line = msgspec.json.encode(Failed(code="c", message="m"))
    assert msgspec.json.decode(line) == {"state": "failed", "code": "c", "message": "m"}
    line = msgspec.json.encode(Ready(address="tcp://127.0.0.1:7", load_s=1.0))
    assert msgspec.json.decode(line, type=InstanceLine).address == "tcp://127.0.0.1:7"


def test_addresses():
    assert split_address("localhost:80") == ("localhost", 80)
    assert split_address("[fe80::1]:0") == ("fe80::1", 0)


class _Bench:
    """Sockets, closed at the end."""

    def __init__(self):
        self.context = zmq.Context()
        self._sockets = []

    def listen(self, listen, secret="", **fields):
        socket = new_socket(self.context, zmq.ROUTER)
        self._sockets.append(socket)
        setup = InstanceSetup(name="p0", listen=listen, **fields)
        return socket, listen_for_dispatchers(socket, setup, secret)

    def connect(self, address, secret=""):
        socket = connect_instance(self.context, address, secret)
        self._sockets.append(socket)
        return socket

    def close(self):
        for socket in self._sockets:
            socket.close(linger=0)
        self.context.term()


@pytest.fixture
def bench():
    bench = _Bench()
    yield bench
    bench.close()


def test_any_free_port_and_one_that_is_taken(bench):
    router, address = bench.listen("localhost:0")
    assert address.startswith("tcp://localhost:")
    with pytest.raises(AddressInUseError, match="is taken"):
        bench.listen(address.removeprefix("tcp://"))
    dealer = bench.connect(address)
    dealer.send(b"hello")
    assert router.poll(5000)
    assert router.recv_multipart()[1] == b"hello"


def test_a_private_directory(bench, tmp_path):
    router, address = bench.listen(f"ipc://{tmp_path}")
    assert address != bench.listen(f"ipc://{tmp_path}")[1]
    dealer = bench.connect(address, "a secret of block names")
    dealer.send(b"hello")
    assert router.poll(5000)
    assert router.recv_multipart()[1] == b"hello"
    with pytest.raises(ConfigError, match=r"no socket can be made in .*/none"):
        bench.listen(f"ipc://{tmp_path}/none")


def test_beyond_loopback_there_must_be_a_secret(bench):
    with pytest.raises(ConfigError, match=r"set cache\.secret"):
        bench.listen("0.0.0.0:0", host="192.0.2.7")
    with pytest.raises(ConfigError, match=r"set cache\.secret"):
        bench.connect("tcp://192.0.2.7:7", "")


def test_an_address_of_another_machine(bench):
    with pytest.raises(ConfigError, match=r"cannot be listened on .* of this machine"):
        bench.listen("192.0.2.7:0", "secret")
