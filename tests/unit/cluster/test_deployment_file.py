"""A deployment's file: what it may say, and what is refused in which words."""

import tomllib
from pathlib import Path

import pytest

from inlay.cluster.deployment import Deployment
from inlay.cluster.deployment_file import parse_deployment, read_deployment
from inlay.core.errors import ConfigError

EXAMPLES = Path(__file__).parents[3] / "examples" / "deployments"

SPLIT = """
[instances.prefill]
role = "prefill"
count = 2
[instances.decode]
role = "decode"
"""


def parse(text: str) -> Deployment:
    return parse_deployment(tomllib.loads(text))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_examples_are_read(file: Path) -> None:
    assert read_deployment(file).name == file.stem


def test_least_file() -> None:
    found = parse("[instances.all]")
    assert (found.model, found.launcher, found.instances["all"].role) == (None, "local", "both")
    assert found.engine_of("all", 0) == {"device": "auto"}


def test_engine_settings_of_a_group_are_laid_over_those_of_all() -> None:
    found = parse(
        SPLIT
        + """
        [instances.decode.engine]
        scheduler.max_running = 8
        [engine]
        scheduler.max_running = 64
        scheduler.prefill_chunk = 256
        [dispatcher]
        policy = "kv_centric"
        options = {balancing_threshold = 2.5}
        """
    )
    assert found.engine_of("decode", 0)["scheduler"] == {"max_running": 8, "prefill_chunk": 256}
    assert found.engine_of("prefill", 1)["scheduler"]["max_running"] == 64
    assert found.dispatcher.options == {"balancing_threshold": 2.5}


def test_each_instance_of_a_group_has_its_device() -> None:
    found = parse('[instances.all]\ncount = 2\ndevice = ["cuda:0", "cuda:1"]')
    assert [found.engine_of("all", i)["device"] for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]


def test_times_have_units() -> None:
    found = parse('drain = "2min"\n[instances.a]\n[slo.chat]\nttft = "500ms"\ntbt = 0.05')
    assert found.drain_s == 120
    assert (found.slo["chat"].name, found.slo["chat"].ttft_s) == ("chat", 0.5)
    assert found.slo["chat"].tbt_s == 0.05


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no instance: add a group"),
        ("names = 'x'\n[instances.a]", "there is no key 'names': did you mean name?"),
        ("[instances.a]\ncuont = 2", "[instances.a] has no key 'cuont': did you mean count?"),
        ("[instances.a]\ncount = 'two'", "[instances.a] count=two: must be a whole number"),
        ("[instances.a]\ncount = -1", "[instances.a] count is -1: it must be in 0..256"),
        ("[instances.a]\nrole = 'decod'", "Did you mean decode?"),
        ("instances = 3", "instances is 3: it must be a table"),
        ("[instances.a-b]", "[instances] is 'a-b': a name has"),
        ("[instances.master]", "[instances.master] has the name of other processes, master-0"),
        (
            "[instances.a]\n[instances.b.engine]\nmax_context_tokens = 512",
            "[instances.b] has max_context_tokens 512 and [instances.a] not set",
        ),
        ("[instances.a]\nrole = 'prefill'", 'no instance is for decode: add a group with role = "'),
        ("[instances.a]\ncount = 0", "there is no instance"),
        ("name = '../x'\n[instances.a]", "name is '../x'"),
        ("launcher = 'rey'\n[instances.a]", "Did you mean ray?"),
        ("[instances.a]\nhost = '10.0.0.2'", 'write launcher = "ray"'),
        (
            "launcher = 'ray'\n[instances.a]\nhost = '10.0.0.2'\n[instances.b]",
            "[instances.b] host is '', where [instances.a] on 10.0.0.2 cannot reach it",
        ),
        (
            "launcher = 'ray'\n[instances.a]\nhost = '10.0.0.2'\n[store.nodes.n]\n"
            "host = '10.0.0.2'",
            "[store] host is '127.0.0.1', where [instances.a] on 10.0.0.2 cannot reach it",
        ),
        ("[engine]\nmodel = 'x'\n[instances.a]", "[engine] model: it is no setting of an engine"),
        ("[engine.cache]\nsecret = 'x'\n[instances.a]", "write secret"),
        ("[engine.cache]\nstore = 'x:1'\n[instances.a]", "add [store] and a node"),
        ("[store]\n[instances.a]", "[store] has no memory: add a node"),
        ("[store]\nmasters = 2\n[instances.a]", "add etcd"),
        ("[store.nodes.n]\nmemory = '1 pound'\n[instances.a]", "is not a size"),
        ("[store.nodes.n]\ndisk = '/x'\n[instances.a]", "write a directory and a size"),
        ("[slo.chat]\nttft = '0s'\n[instances.a]", "[slo.chat] ttft is 0 s: it must be above 0"),
        ("[slo.chat]\nttft = 'soon'\n[instances.a]", "'soon' is not a time"),
        ("[slo.chat]\ntbt = '2s'\nitl = '1s'\n[instances.a]", "[slo.chat] tbt (2 s) is above itl"),
        ("[slo.chat]\nname = 'x'\n[instances.a]", "[slo.chat] has no key 'name'"),
        ("[tenants.t]\npriority = 2000\n[instances.a]", "priority is 2000: it must be in"),
        ("[slo.chat]\nttf = '1s'\n[instances.a]", "did you mean ttft?"),
        ("[tenants.t]\nweight = 0\n[instances.a]", "weight is 0.0: it must be above 0"),
        ("[dispatcher]\nport = 70000\n[instances.a]", "[dispatcher] port is 70000"),
        ("[dispatcher]\npolicy = 'best'\n[instances.a]", "policy 'best' is not one of random,"),
        ("[dispatcher.options]\nx = 1\n[instances.a]", "[dispatcher] policy inlay, options"),
        ("[instances.a]\ncount = 2\ndevice = 'cuda:0'", "a-1 is on cuda:0, as a-0 is"),
        ("[instances.a]\ncount = 3\ndevice = ['cpu', 'cpu']", "2 entries and count is 3"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(text: str, words: str) -> None:
    assert words in refusal(text)


def test_pages_have_to_fit_together() -> None:
    message = refusal(SPLIT + "[instances.decode.engine]\ncache.page_tokens = 32")
    assert "[instances.decode] has cache.page_tokens 32 and [instances.prefill] not set" in message


def test_two_instances_share_a_gpu_where_the_file_says_how() -> None:
    parse('[engine]\ncache.memory = "1GiB"\n[instances.a]\ncount = 2\ndevice = "cuda:0"')


def test_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    for text, words in (
        ("a = [", "is no TOML"),
        ("a = 1", "there is no key 'a'"),
        ("[instances.a]\n[instances.a]", r"Cannot declare \('instances', 'a'\) twice"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words) as caught:
            read_deployment(file)
        assert str(caught.value).startswith(str(file))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_deployment(tmp_path / "none.toml")


FOREIGN = """
model = "/models/m"
[foreign.a]
url = "http://10.0.0.5:8000"
[foreign.b]
url = "http://10.0.0.6:8000"
kind = "sglang"
kv_events = "tcp://10.0.0.6:5557"
"""


def test_foreign_engines() -> None:
    found = parse(FOREIGN)
    assert [one.kind for one in found.foreign.values()] == ["auto", "sglang"]
    assert found.foreign["b"].kv_events == "tcp://10.0.0.6:5557"
    assert parse(FOREIGN + "[engine]\ncache.page_tokens = 64").engine


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FOREIGN + "[instances.all]", "[instances] stands beside [foreign]"),
        (FOREIGN + '[store.nodes.n0]\nmemory = "1GiB"', "[store] stands beside [foreign]"),
        (FOREIGN + '[engine]\nweight_format = "int8"', "[engine] weight_format"),
        (FOREIGN + '[engine]\ncache.memory = "1GiB"', "[engine] cache"),
        (FOREIGN.replace('model = "/models/m"', ""), "write model"),
        ('launcher = "ray"' + FOREIGN, 'launcher is "ray"'),
        (FOREIGN.replace("foreign.a", "foreign.master"), "name of other processes"),
        (FOREIGN.replace("http://10.0.0.5", "10.0.0.5"), "[foreign.a] url"),
        (FOREIGN + "port = 3", "no key 'port'"),
    ],
)
def test_foreign_engines_that_are_refused(text: str, words: str) -> None:
    assert words in refusal(text)
