"""What `inlay serve` prints when it is ready."""

from inlay import __version__
from inlay.core.messages import EngineInfo, LoadProgress
from inlay.core.units import format_bytes


def banner(
    url: str,
    name: str,
    info: EngineInfo,
    progress: LoadProgress,
    *,
    page: bool,
    key: bool,
    start_s: float,
) -> str:
    """A few lines: what is served, where, and two things to try."""
    about = [info.architecture, f"{_count(info.parameters)} parameters", info.weight_format]
    about += [f"{info.device} ({info.isa})", f"context {info.max_context_tokens}"]
    token = "$INLAY_KEY" if key else "-"
    header = ' -H "Authorization: Bearer $INLAY_KEY"' if key else ""
    placed = [f"  {info.placement}"] if info.placement else []
    if info.deferred:
        placed += [f"  {info.deferred} experts of a token are deferred while it decodes"]
    lines = [
        f"Inlay {__version__} serves {name} at {url} (ready in {start_s:.1f} s)",
        "  " + ", ".join(about),
        *placed,
        "  " + _kv_line(info),
        "  " + weights_line(progress),
        "",
    ]
    if page:
        lines += ["Chat page, dashboard:", f"  {url}/", f"  {url}/dashboard", ""]
    question = '{"messages": [{"role": "user", "content": "What does lantern mean?"}]}'
    lines += [
        "Try it with curl:",
        f"  curl {url}/v1/chat/completions{header} -d '{question}'",
        "",
        "or with the openai package:",
        "  from openai import OpenAI",
        f'  client = OpenAI(base_url="{url}/v1", api_key="{token}")',
        '  messages = [{"role": "user", "content": "What does lantern mean?"}]',
        f'  answer = client.chat.completions.create(model="{name}", messages=messages)',
        "  print(answer.choices[0].message.content)",
        "",
        "Stop with Ctrl+C.",
    ]
    return "\n".join(lines)


def _kv_line(info: EngineInfo) -> str:
    size, tokens = info.num_pages * info.page_bytes, info.num_pages * info.page_tokens
    return f"keys and values of {tokens} tokens: {format_bytes(size)} (--kv-memory sets it)"


def weights_line(progress: LoadProgress) -> str:
    """How much of the weights is in memory, and at the end how fast it came."""
    loaded, total = format_bytes(progress.loaded_bytes), format_bytes(progress.total_bytes)
    if not progress.over:
        return f"{loaded} of {total} of weights are loaded; the others follow, needed ones first"
    rate = progress.loaded_bytes / 1e9 / max(progress.seconds, 1e-3)
    line = (
        f"{loaded} of {total} of weights are loaded, in {progress.seconds:.1f} s ({rate:.2f} GB/s)"
    )
    if progress.loaded_bytes < progress.total_bytes:
        line += "; the others stay in their file, since memory is short"
    return line


def _count(number: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)
