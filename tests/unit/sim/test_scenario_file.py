"""Scenario files: what they make, and what is said of those that fit nothing."""

from pathlib import Path

import pytest

from inlay.core.errors import ConfigError, ResourceError
from inlay.core.hardware import machine_named
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape
from inlay.sim.scenario import Loss, RoleChange, Scenario
from inlay.sim.scenario_file import read_scenario

EXAMPLES = Path(__file__).parents[3] / "examples" / "simulations"
TABLE = """new_tokens,cached_tokens,seconds
128,0,0.02
256,0,0.03
512,0,0.05
1,128,0.01
1,512,0.011
1,2048,0.012
"""


def shape_named(name: str) -> ModelShape:
    config = known_config(name)
    assert config is not None
    return shape_of(config)


def read(folder: Path, text: str) -> Scenario:
    file = folder / "scenario.toml"
    file.write_text(text)
    return read_scenario(file, shape_named, machine_named)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_examples(file: Path) -> None:
    scenario = read_scenario(file, shape_named, machine_named)
    assert sum(kind.count * kind.gpus for kind in scenario.kinds) == 128
    assert all(kind.assumed and kind.instance.num_pages > 100 for kind in scenario.kinds)
    assert (file.stem == "losses") == bool(scenario.losses and scenario.role_changes)
    assert scenario.slo.ttft_s == 30


def test_all_keys(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text(TABLE)
    scenario = read(
        tmp_path,
        """
        model = "qwen3-8b"
        page_tokens = 16
        news_delay = "20ms"
        copies = false
        seed = 7
        [instances.prompts]
        role = "prefill"
        count = 2
        steps = "steps.csv"
        tokens = 1000
        network_gbs = 10.0
        decode_first = true
        noise = 0.5
        cache.host = "10GB"
        cache.host_gbs = 20.0
        cache.disk = "/var/cache/inlay:1TB"
        cache.disk_gbs = 6.0
        cache.disk_write_gbs = 3.0
        cache.write = "second_hit"
        cache.eviction = "lru"
        [instances.answers]
        role = "decode"
        machine = "xeon-spr-2s+8xh800"
        tensor = 2
        costs.kernel = "1us"
        cache.host = "auto"
        [store]
        memory = "2TB"
        eviction = "s3fifo"
        network_gbs = 100.0
        latency = "1ms"
        [dispatcher]
        policy = "kv_centric"
        roles = "auto"
        options.balancing_threshold = 2.0
        [admission]
        mode = "early"
        max_wait = "5s"
        [slo.default]
        tbt = "50ms"
        [slo.chat]
        ttft = "1s"
        [tenants.chat]
        weight = 2.0
        [[losses]]
        instance = "answers"
        at = "2min"
        [[losses]]
        instance = "prompts"
        number = 1
        at = 30
        back = "5s"
        [[role_changes]]
        instance = "prompts"
        at = "1min"
        role = "both"
        """,
    )
    prompts, answers = scenario.kinds
    assert (prompts.name, prompts.count, prompts.gpus) == ("prompts", 2, 0)
    assert prompts.instance.num_pages == 1000 // 16
    assert prompts.instance.noise == 0.5
    assert (prompts.instance.decode_first, answers.instance.decode_first) == (True, False)
    assert prompts.instance.out_bytes_per_s == 10e9
    assert prompts.instance.token_bytes == answers.instance.token_bytes > 0
    host, disk, token_bytes = prompts.instance.host, prompts.instance.disk, 147_456
    assert host is not None and disk is not None and scenario.store is not None
    assert (host.tokens, host.read_bytes_per_s) == (10**10 // token_bytes, 20e9)
    assert (prompts.instance.write, host.eviction) == ("second_hit", "lru")
    assert (disk.tokens, disk.read_bytes_per_s) == (10**12 // token_bytes, 6e9)
    assert disk.write_bytes_per_s == 3e9
    found = answers.instance.host
    assert found is not None and found.tokens > 10**6 and answers.instance.disk is None
    store = scenario.store
    assert (store.name, store.tokens) == ("store", 2 * 10**12 // token_bytes)
    assert (store.eviction, store.read_bytes_per_s, store.latency_s) == ("s3fifo", 1e11, 1e-3)
    assert (answers.role, answers.gpus) == ("decode", 2)
    assert (scenario.policy, scenario.policy_options) == (
        "kv_centric",
        {"balancing_threshold": 2.0},
    )
    assert scenario.roles == "auto"
    assert (scenario.admission.mode, scenario.admission.max_wait_s) == ("early", 5.0)
    assert (scenario.slo.tbt_s, scenario.groups["chat"].ttft_s) == (0.05, 1.0)
    assert scenario.weights == {"chat": 2.0}
    assert scenario.losses == (Loss(at_s=120, slot=2), Loss(at_s=30, slot=1, back_s=5))
    assert scenario.role_changes == (RoleChange(at_s=60, slot=0, role="both"),)
    assert (scenario.news_delay_s, scenario.copies, scenario.seed) == (0.02, False, 7)


MODEL = 'model = "qwen3-8b"'
MACHINE = 'machine = "xeon-spr-2s+8xh800"'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("roles = 1", "there is no key 'roles'"),
        ("", "there is no instance"),
        ("[instances.a]", r"\[instances.a\] one of machine, calibration and steps"),
        ('[instances.a]\nrole = "all"', r"\[instances.a\] role"),
        (f"[instances.a]\n{MACHINE}\ncount = 0", "count is 0: it must be at least 1"),
        (f"[instances.a]\n{MACHINE}", r"\[instances.a\] machine: name a model"),
        (f"[instances.a]\n{MACHINE}\ntensr = 2", "did you mean tensor"),
        (f"[instances.a]\n{MACHINE}\ntokens = 5", "tokens follow from machine"),
        (f'[instances.a]\nrole = "prefill"\n{MACHINE}', "no instance is for decode"),
        ('[instances.a]\nsteps = "s.csv"', "for how many tokens"),
        ('[instances.a]\nsteps = "none.csv"\ntokens = 9', "none.csv: cannot be read"),
        ('model = "qwen3-8b"\n[instances.a]\nmachine = "xeon-spr-2s+8xh80"', "h80"),
        (f'[instances.a]\n{MACHINE}\n[dispatcher]\npolicy = "best"', r"\[dispatcher\]"),
        (f'[instances.a]\n{MACHINE}\n[slo.default]\nttft = "fast"', "'fast' is not a time"),
        (f'{MODEL}\n[instances.a]\n{MACHINE}\ncache.disk = "auto"', "disk_gb and disk_gbs"),
        (f'{MODEL}\n[instances.a]\n{MACHINE}\ncache.host = "9TB"', "room for .* GB"),
        (f'{MODEL}\n[instances.a]\n{MACHINE}\ncache.host = "9 T"', "is not a size"),
        (f"{MODEL}\n[instances.a]\n{MACHINE}\ncache.host_gbs = 0", "must be above 0"),
        (f'{MODEL}\n[instances.a]\n{MACHINE}\n[store]\nsize = "1TB"', "no key 'size'"),
        ("[instances", "is no TOML"),
    ],
)
def test_what_fits_nothing(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        read(tmp_path, text)
    assert "scenario.toml" in str(raised.value)


LOSS = "[[losses]]"
ROLE = "[[role_changes]]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('losses = "all"', "losses is 'all': it must be tables"),
        (f"{LOSS}\nat = 5", r"\[\[losses\]\] has no instance"),
        (f'{LOSS}\ninstance = "prompts"', r"\[\[losses\]\] has no at"),
        (f'{LOSS}\ninstance = "prompt"\nat = 5', "no instances 'prompt': did you mean prompts?"),
        (f'{LOSS}\ninstance = "xyz"\nat = 5', "no instances 'xyz': the file has prompts"),
        (f'{LOSS}\ninstance = "prompts"\nnumber = 2\nat = 5', "no instance 2: its 2 count from 0"),
        (f'{LOSS}\ninstance = "prompts"\nnumber = -1\nat = 5', "number is -1"),
        (f'{LOSS}\ninstance = "prompts"\nat = -5', "at is -5 s: it must be a time of the trace"),
        (f'{LOSS}\ninstance = "prompts"\nat = "-5s"', "'-5s' is not a time"),
        (f'{LOSS}\ninstance = "prompts"\nat = 5\nback = 0', "back is 0 s"),
        (
            f'{LOSS}\ninstance = "prompts"\nat = 5\nback = "1ms"',
            "prompts 0 is lost at 5 s: it c",
        ),
        (f'{LOSS}\ninstance = "prompts"\nat = 5\nwhen = 7', "no key 'when'"),
        (
            f'{LOSS}\ninstance = "prompts"\nat = 5\nback = 9\n{LOSS}\ninstance = "prompts"\nat = 7',
            "prompts 0 is lost at 7 s: it was lost before and is back at 14 s",
        ),
        (f'{ROLE}\ninstance = "prompts"\nat = 5', r"\[\[role_changes\]\] has no role"),
        (f'{ROLE}\ninstance = "prompts"\nat = 5\nrole = "all"', "role=all: must be one of"),
    ],
)
def test_changes_that_fit_nothing(tmp_path: Path, text: str, told: str) -> None:
    instances = f"{MODEL}\n[instances.prompts]\ncount = 2\n{MACHINE}"
    whole = f"{text}\n{instances}" if text.startswith("losses") else f"{instances}\n{text}"
    with pytest.raises(ConfigError, match=told) as raised:
        read(tmp_path, whole)
    assert "scenario.toml" in str(raised.value)


def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"\[instances.a\] 1 x .* leave .* take more GPUs"):
        read(tmp_path, f'model = "deepseek-v3"\n[instances.a]\n{MACHINE}')
