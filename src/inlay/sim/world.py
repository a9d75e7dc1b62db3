"""The door to the simulated world: instances that do not exist, in a time of their own.

It knows no policy: `simulation` decides where requests go and when time goes on. What instances do
is in `native/sim`: they step as `engine.scheduler` makes them, keep blocks as `cache.PagedKvCache`
does, and send prompts to each other as `cache.stream` does.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inlay.cache.config import WriteWhen
from inlay.cluster.prefix_index import PrefixIndex
from inlay.cluster.state import ClusterState
from inlay.cluster.store_index import StoreIndex
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import LoadReport, StepSample
from inlay.sim import _backend
from inlay.sim.step_time import StepTime
from inlay.sim.tier import TIERS, Tier, TierName

DIGEST_BYTES = 16
OUTCOME = np.dtype(
    [
        ("request", np.uint64),
        ("arrival_s", np.float64),
        ("first_s", np.float64),
        ("end_s", np.float64),
        ("tbt_s", np.float64),
        ("longest_gap_s", np.float64),
        ("cached_tokens", np.uint32),
        ("preemptions", np.uint32),
        ("prefill", np.uint32),
        ("decode", np.uint32),
        ("host_tokens", np.uint32),
        ("disk_tokens", np.uint32),
        ("store_tokens", np.uint32),
    ],
    align=True,
)
"""What came of a request: its times, `cluster.slo.tbt_s` and longest gap of its tokens, how much of
its prompt was in the cache, how often it was preempted, the slots that computed it, and how much of
what was in the cache was loaded from which tier."""
CHUNK = np.dtype(
    [
        ("step", np.uint64),
        ("start_s", np.float64),
        ("end_s", np.float64),
        ("request", np.uint64),
        ("slot", np.uint32),
        ("start", np.uint32),
        ("stop", np.uint32),
        ("samples", np.uint32),
    ]
)
"""Tokens start..stop of a request, computed in a step of a slot, and whether a token of its output
came of them; see `World.keep_steps`."""

_WRITES: tuple[WriteWhen, ...] = ("through", "second_hit", "evict")
_FIRST, _FINISHED, _REPORT, _COPIED, _NOT_COPIED, _SENDING, _SENT = range(7)


@dataclass(frozen=True, kw_only=True)
class InstanceConfig:
    """One engine.

    Attributes:
        step_time: how long its steps take.
        num_pages: of its KV cache; a page is a block of the trace.
        page_tokens: the same for all instances.
        max_batch_tokens, max_running, prefill_chunk: as in `engine.config.SchedulerConfig`.
        decode_first: prompts wait until no output is under way. No engine of ours does that: it is
            here to be compared with.
        noise: relative standard deviation of a step's time.
        experts, experts_per_token: of a layer, and how many a token chooses; 0: none.
        token_bytes: of KV, all layers.
        layers: KV of a layer is sent while the next one is computed.
        out_bytes_per_s, in_bytes_per_s: of its links to other instances and to the store; 0: there
            is none.
        host, disk: tiers behind its device; a disk needs a host.
        write: when a block is copied to them and to the store: as `cache.CacheConfig.write`.
    """

    step_time: StepTime
    num_pages: int
    page_tokens: int = 512
    max_batch_tokens: int = 1024
    max_running: int = 64
    prefill_chunk: int = 512
    decode_first: bool = False
    noise: float = 0.0
    experts: int = 0
    experts_per_token: int = 0
    token_bytes: float = 0.0
    layers: int = 1
    out_bytes_per_s: float = 0.0
    in_bytes_per_s: float = 0.0
    host: Tier | None = None
    disk: Tier | None = None
    write: WriteWhen = "through"

    def __post_init__(self) -> None:
        if self.write not in _WRITES:
            raise ConfigError(f"write {self.write!r} is not one of {', '.join(_WRITES)}")
        if self.disk is not None and self.host is None:
            raise ConfigError("disk: it is filled from the host's memory: set host, too")


class FirstToken(NamedTuple):
    """A request has its first token, as heard at `time_s`."""

    time_s: float
    request: int


class Finished(NamedTuple):
    """A request is over, after so many tokens in all, as heard at `time_s`."""

    time_s: float
    request: int
    output_tokens: int


class Reported(NamedTuple):
    """An instance said how loaded it is, as heard at `time_s`."""

    time_s: float
    slot: int
    report: LoadReport


class Copied(NamedTuple):
    """A copy has come, or will not, as heard at `time_s`."""

    time_s: float
    copy: int
    came: bool


class Sending(NamedTuple):
    """An instance was asked for keys and values, as heard at `time_s`."""

    time_s: float
    slot: int
    size_bytes: float


class Sent(NamedTuple):
    """It has sent them, or will not, as heard at `time_s`.

    Attributes:
        seconds: what that took; None where computing was a part of it, or it failed.
    """

    time_s: float
    slot: int
    size_bytes: float
    seconds: float | None


class Undivided(NamedTuple):
    """A prompt is computed where it is decoded: the other instance is lost. Heard at `time_s`."""

    time_s: float
    request: int


News = FirstToken | Finished | Reported | Copied | Sending | Sent | Undivided


class World:
    """Instances in simulated time. The same calls give the same results.

    Args:
        seed: of the noise.
        index: hears of blocks; its slots are those of the instances, in the order of `add`.
        state: hears of the rest that it can take over; its slots are the same, and its requests
            are called by their numbers.
        news_delay_s: after which it is heard what instances say.
        report_s: between two load reports of an instance, at least.
        link_latency_s: from the last byte that is sent to the first use.
        aim_timeout_s, come_timeout_s: a computed prompt waits so long for pages where it is
            decoded, and these for a prompt; then it is computed there. As in `cache.stream`.
        copy_timeout_s: whoever waits for a copy waits so long. As in `cluster.copies`.
        samples: whether reports say how long steps took.
        store: that instances share, of pages of `page_tokens`.
        store_index: hears of its blocks.

    Attributes:
        index: as given.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        index: PrefixIndex | None = None,
        state: ClusterState | None = None,
        news_delay_s: float = 0.002,
        report_s: float = 0.1,
        link_latency_s: float = 0.0,
        aim_timeout_s: float = 60.0,
        come_timeout_s: float = 600.0,
        copy_timeout_s: float = 10.0,
        samples: bool = True,
        store: Tier | None = None,
        store_index: StoreIndex | None = None,
        page_tokens: int = 512,
    ) -> None:
        self.index = index
        self._native_index = None if index is None else index.native
        self._state = None if state is None else state.core
        self._store_index = None if store_index is None else store_index.native
        self._world = _backend.World(
            seed=seed,
            news_delay_s=news_delay_s,
            report_s=report_s,
            link_latency_s=link_latency_s,
            aim_timeout_s=aim_timeout_s,
            come_timeout_s=come_timeout_s,
            copy_timeout_s=copy_timeout_s,
            samples=samples,
            store=_native_tier(store, page_tokens),
        )
        self._pages: list[int] = []
        self._page_bytes: list[float] = []

    def add(self, config: InstanceConfig) -> int:
        """One more instance; returns its slot.

        Raises:
            ArgumentError: a number is out of its range, or the page size is not that of the others.
        """
        arguments: dict[str, Any] = {
            name: getattr(config, name) for name in InstanceConfig.__dataclass_fields__
        }
        arguments["step_time"] = [list(forms) for forms in config.step_time.parts]
        for name in ("host", "disk"):
            arguments[name] = _native_tier(arguments[name], config.page_tokens)
        arguments["write"] = _WRITES.index(config.write)
        slot = self._world.add(**arguments)
        self._pages.append(config.num_pages)
        self._page_bytes.append(config.page_tokens * config.token_bytes)
        return slot

    def advance(self, until_s: float) -> bool:
        """Run all that happens before a request that is submitted at `until_s`.

        Infinite: until nothing is left to do.

        Returns:
            False where it stopped before, since a `Copied` was heard, for which somebody waits.
        """
        return self._world.advance(until_s, self._native_index, self._store_index)

    def submit(
        self,
        request: int,
        *,
        arrival_s: float,
        prompt_tokens: int,
        output_tokens: int,
        blocks: bytes,
        prefill: int,
        decode: int,
        priority: int = 0,
    ) -> None:
        """Send a request to an instance, now; or to two, of which one computes its prompt.

        Args:
            request: the caller's number, that of its outcome.
            arrival_s: now or before; those that came first run first.
            blocks: names of the full blocks of the prompt, as `names_of` makes them.

        Raises:
            ArgumentError: an instance could never hold it, or has no link to the other one.
        """
        self._world.submit(
            request, arrival_s, priority, prompt_tokens, output_tokens, blocks, prefill, decode
        )

    def copy(self, blocks: bytes, source: int, target: int) -> int:
        """Have an instance send the first blocks of a prompt to another one.

        The source computes what it has not; the target puts out nothing.

        Args:
            blocks: all from the first one on.

        Returns:
            A number, that of its `Copied`.

        Raises:
            ArgumentError: as `submit`.
        """
        return self._world.copy(blocks, source, target)

    def take_back(self, request: int, slot: int) -> int | None:
        """Take a request away from the instance where it is, or is to be, decoded.

        It may be submitted once more, with its output so far as a part of its prompt: its times are
        of all of it, its `cached_tokens` of its last prompt.

        Returns:
            Tokens of its output so far; None where it is not there, having finished.
        """
        return self._world.take_back(request, slot)

    def lose(self, slot: int) -> list[tuple[int, int]]:
        """An instance is lost with all that it has, until `come_back`; send it nothing until then.

        Prompts that it computed for others are computed where they are decoded.

        Returns:
            Requests that it decoded, or would have, and how many tokens of output each had; as with
            `take_back`, they may be submitted once more.
        """
        return self._world.lose(slot)

    def come_back(self, slot: int) -> None:
        """A lost instance is there again, and empty."""
        self._world.come_back(slot)

    def news(self) -> list[News]:
        """What was heard since the last call, in order; of a slot's reports the latest.

        Where there is a state: the next of what it cannot take over, alone, and nothing where that
        is all; what came before it the state has taken over by then, and what follows it will with
        the next calls.
        """
        heard: list[News] = []
        for item in self._world.take_news(self._state):
            kind = item[0]
            if kind == _FIRST:
                heard.append(FirstToken(item[1], item[2]))
            elif kind == _FINISHED:
                heard.append(Finished(item[1], item[2], item[3]))
            elif kind == _REPORT:
                heard.append(Reported(item[1], item[2], self._report(*item[2:])))
            elif kind in (_COPIED, _NOT_COPIED):
                heard.append(Copied(item[1], item[2], kind == _COPIED))
            elif kind == _SENDING:
                heard.append(Sending(item[1], item[2], item[3]))
            elif kind == _SENT:
                heard.append(Sent(item[1], item[2], item[3], item[4] if item[4] >= 0 else None))
            else:
                heard.append(Undivided(item[1], item[2]))
        return heard

    def finished(self) -> list[int]:
        """Requests of which the state has heard since the last call that they are over."""
        return self._world.take_finished()

    def outcomes(self) -> NDArray[np.void]:
        """Of requests that finished since the last call, as `OUTCOME`, in that order."""
        return np.frombuffer(self._world.take_outcomes(), OUTCOME)

    def gap_counts(self) -> NDArray[np.int64]:
        """Gaps between tokens of all requests that have finished, by the bins of `gaps`."""
        return np.frombuffer(self._world.gap_counts(), np.int64)

    def keep_steps(self) -> None:
        """Keep what is computed from now on, for `steps`. Costs 48 bytes for each chunk."""
        self._world.keep_steps()

    def steps(self) -> NDArray[np.void]:
        """Chunks of the steps that ended since the last call, as `CHUNK`."""
        return np.frombuffer(self._world.take_steps(), CHUNK)

    def audit(self) -> None:
        """Check that pages are accounted for. Cost: all blocks; for tests."""
        self._world.audit()

    @property
    def now_s(self) -> float:
        """The time that it has come to."""
        return self._world.now_s

    @property
    def num_live(self) -> int:
        """Requests that were submitted and are not finished."""
        return self._world.num_live

    def busy_s(self, slot: int) -> float:
        """Seconds of steps that an instance began."""
        return self._world.busy_s(slot)

    def num_steps(self, slot: int) -> int:
        """Steps that an instance began."""
        return self._world.num_steps(slot)

    def sent_bytes(self, slot: int) -> float:
        """KV that an instance has sent over its link: to others, and to the store."""
        return self._world.sent_bytes(slot)

    def tier_bytes(self, slot: int, tier: TierName) -> tuple[float, float]:
        """KV that an instance has read from a tier, and written to it."""
        read, written = self._world.tier_blocks(slot, TIERS.index(tier))
        return read * self._page_bytes[slot], written * self._page_bytes[slot]

    def lost_blocks(self, slot: int) -> int:
        """Blocks of an instance that were to be copied to tiers and had to go before."""
        return self._world.lost_blocks(slot)

    def _report(
        self,
        slot: int,
        waiting: int,
        running: int,
        receiving: int,
        prefill_tokens: int,
        context_tokens: int,
        pages_free: int,
        pages_cached: int,
        samples: list[tuple[int, int, int, int, float]],
        find_s: float,
        load_block_s: float,
    ) -> LoadReport:
        return LoadReport(
            run_id="1",
            waiting=waiting,
            running=running,
            receiving=receiving,
            prefill_tokens=prefill_tokens,
            context_tokens=context_tokens,
            pages_total=self._pages[slot],
            pages_free=pages_free,
            pages_cached=pages_cached,
            samples=tuple(StepSample(*sample) for sample in samples),
            find_s=find_s if find_s >= 0 else None,
            load_block_s=load_block_s if load_block_s >= 0 else None,
        )


def _native_tier(
    tier: Tier | None, page_tokens: int
) -> tuple[int, float, float, float, str] | None:
    """A tier as the compiled world has it, by blocks."""
    if tier is None:
        return None
    blocks = tier.tokens // page_tokens
    if not blocks:
        raise ConfigError(
            f"{tier.name}: {tier.tokens} tokens are less than a page, which has {page_tokens}"
        )
    rates = tier.read_bytes_per_s, tier.write_bytes_per_s
    return blocks, *rates, tier.latency_s, tier.eviction


def names_of(blocks: NDArray[np.uint64]) -> bytes:
    """Digests that stand for the names of a trace's blocks, `DIGEST_BYTES` each, joined."""
    names = np.zeros((len(blocks), 2), np.uint64)
    names[:, 0] = blocks
    return names.tobytes()
