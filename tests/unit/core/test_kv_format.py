import pytest

from inlay.core.errors import ConfigError
from inlay.core.kv_format import KvFormat, Plane, gqa_format


def test_sizes_of_a_page():
    kv_format = gqa_format(layers=3, kv_heads=2, head_dim=16, dtype="bfloat16", page_tokens=8)
    assert kv_format.token_elements == 64
    assert kv_format.layer_bytes == 64 * 8 * 2
    assert kv_format.page_bytes == 3 * kv_format.layer_bytes


def test_ranges_tile_the_pool():
    kv_format = gqa_format(layers=3, kv_heads=1, head_dim=4, dtype="float32", page_tokens=2)
    ranges = [kv_format.layer_range(page, layer) for page in range(4) for layer in range(3)]
    assert ranges[0].start == 0
    assert all(left.stop == right.start for left, right in zip(ranges, ranges[1:], strict=False))
    assert ranges[-1].stop == 4 * kv_format.page_bytes


def test_a_latent_plane_counts_once():
    kv_format = KvFormat(page_tokens=16, dtype="float16", planes=(Plane("latent", 576),), layers=1)
    assert kv_format.page_bytes == 16 * 576 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int4"}, "kv dtype 'int4' is not one of"),
        ({"page_tokens": 0}, "page_tokens must be at least 1, got 0"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"planes": ()}, "planes must not be empty"),
        ({"planes": (Plane("k", 4), Plane("v", 0))}, "plane 'v' must be at least 1, got 0"),
        ({"tp_degree": 2, "tp_rank": 2}, "tp_rank 2 is not in 0..1"),
    ],
)
def test_bad_values_are_named(change, message):
    fields = {"page_tokens": 16, "dtype": "float32", "planes": (Plane("k", 4),), "layers": 2}
    with pytest.raises(ConfigError, match=message):
        KvFormat(**fields | change)


def test_pages_and_layers_out_of_range():
    with pytest.raises(ConfigError, match="page_id must be at least 0, got -1"):
        gqa_format(layers=2, kv_heads=1, head_dim=4, dtype="float32").layer_range(-1, 0)
    with pytest.raises(ConfigError, match=r"layer 2 is not in 0\.\.1"):
        gqa_format(layers=2, kv_heads=1, head_dim=4, dtype="float32").layer_range(0, 2)
