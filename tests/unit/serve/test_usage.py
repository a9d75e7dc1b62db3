from inlay.core.messages import EngineInfo, EngineStats, LoadProgress
from inlay.serve.events import Usage
from inlay.serve.metrics import ServerMetrics


def test_usage_says_which_tier_gave_how_much():
    usage = Usage(prompt_tokens=50, completion_tokens=2, cached_tokens=48, tier_tokens={"disk": 16})
    details = usage.to_openai()["prompt_tokens_details"]
    assert details == {"cached_tokens": 48, "tier_tokens": {"disk": 16}}
    usage = Usage(prompt_tokens=50, completion_tokens=2, cached_tokens=48)
    assert usage.to_openai()["prompt_tokens_details"] == {"cached_tokens": 48}


def test_metrics_of_tiers_and_experts():
    info = EngineInfo(
        model="m", architecture="llama", parameters=1, max_context_tokens=9, vocab_size=9,
        layers=1, moe_layers=0, experts=0, experts_per_token=0, device="cpu",
        weight_format="float32", kv_dtype="float32", isa="scalar", page_tokens=16, num_pages=1,
        page_bytes=1, load_s=0.0, placement="layers 0 to 0 on cuda:0", deferred=2,
    )  # fmt: skip
    stats = EngineStats(
        tier_hit_tokens={"host": 32, "store": 16},
        tier_loaded_bytes=1,
        tier_written_bytes=2,
        tier_cut_tokens=3,
        tier_failures=4,
        tier_lost_blocks=5,
        expert_activations={"device": 8, "host": 9},
        experts_moved=10,
    )
    progress = LoadProgress(loaded_bytes=6, total_bytes=7, seconds=1.0, over=False)
    text = ServerMetrics(info, "m").render(stats, progress).decode()
    assert 'deferred="2"' in text and 'placement="layers 0 to 0 on cuda:0"' in text
    for line in (
        "inlay_weights_bytes 7.0",
        "inlay_weights_loaded_bytes 6.0",
        'inlay_tier_hit_tokens_total{tier="host"} 32.0',
        'inlay_tier_hit_tokens_total{tier="disk"} 0.0',
        'inlay_tier_hit_tokens_total{tier="store"} 16.0',
        'inlay_expert_activations_total{place="device"} 8.0',
        'inlay_expert_activations_total{place="host"} 9.0',
        "inlay_experts_moved_total 10.0",
        "inlay_tier_loaded_bytes_total 1.0",
        "inlay_tier_written_bytes_total 2.0",
        "inlay_tier_cut_tokens_total 3.0",
        "inlay_tier_failures_total 4.0",
        "inlay_tier_lost_blocks_total 5.0",
    ):
        assert line in text.splitlines()
