"""The eviction policies in plain Python: lists that are searched, objects instead of numbers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from inlay.store import Newcomer

RECHECK_NS = 1_000_000_000
HELD = Callable[[int], bool]


@dataclass(eq=False)
class Item:
    """An object. `children`: how many follow it; only `Cost` counts them."""

    id: int
    list: str
    parent: "Item | None" = None
    range: int = 0
    touched: int = 0
    hits: int = 0
    children: int = 0
    gone: bool = False


@dataclass
class Lists:
    """Coldest first. What is set aside is a prefix that `coldest` does not see."""

    items: dict[str, list[Item]] = field(default_factory=dict)
    aside: dict[str, list[Item]] = field(default_factory=dict)
    since_ns: int | None = None

    def of(self, name: str) -> list[Item]:
        return self.items.setdefault(name, [])

    def drop(self, item: Item, name: str) -> None:
        for lists in (self.items, self.aside):
            if item in lists.get(name, []):
                lists[name].remove(item)

    def listed(self, item: Item, name: str) -> bool:
        return item in self.of(name) or item in self.aside.get(name, [])

    def restore(self, now_ns: int) -> None:
        if self.since_ns is not None and now_ns - self.since_ns >= RECHECK_NS:
            for name, items in self.aside.items():
                self.items[name] = items + self.of(name)
            self.aside, self.since_ns = {}, None

    def coldest(self, name: str, held: HELD, now_ns: int) -> Item | None:
        while self.of(name) and held(self.of(name)[0].id):
            if self.since_ns is None:
                self.since_ns = now_ns
            self.aside.setdefault(name, []).append(self.of(name).pop(0))
        return self.of(name)[0] if self.of(name) else None

    def ids(self) -> dict[str, list[int]]:
        names = {*self.items, *self.aside}
        all = {name: [*self.aside.get(name, []), *self.of(name)] for name in names}
        return {name: [item.id for item in items] for name, items in all.items() if items}


class Policy:
    """What the three have in common."""

    def __init__(self) -> None:
        self.lists = Lists()
        self.here: dict[int, Item] = {}

    def take_out(self, id: int) -> None:
        item = self.here.pop(id)
        self.lists.drop(item, item.list)
        item.gone = True

    def remove(self, id: int) -> None:
        if id in self.here:
            self.take_out(id)


class Lru(Policy):
    def add(self, chain: list[Newcomer], now_ns: int) -> None:
        for new in chain:
            item = self.here[new.id] = Item(new.id, "soft" if new.soft_pin else "plain")
            parent = None if new.parent is None else self.here.get(new.parent)
            for items in (self.lists.of(item.list), self.lists.aside.get(item.list, [])):
                if parent in items and parent is not item:
                    items.insert(items.index(parent), item)
                    break
            else:
                self.lists.of(item.list).append(item)

    def hit(self, chain: list[int], now_ns: int) -> None:
        for item in [self.here[id] for id in reversed(chain) if id in self.here]:
            self.lists.drop(item, item.list)
            self.lists.of(item.list).append(item)

    def victim(self, now_ns: int, held: HELD) -> int | None:
        self.lists.restore(now_ns)
        for name in ("plain", "soft"):
            if item := self.lists.coldest(name, held, now_ns):
                return item.id
        return None

    def evict(self, id: int, hash: int) -> None:
        self.take_out(id)


class Ghosts:
    """Lines of 21 entries: [tag, list, generation] or None."""

    def __init__(self, *horizons: int) -> None:
        self.horizons = horizons
        self.generation = [0, 0]
        self.evictions = [0, 0]
        self.lines: list[list[list[int] | None]] = [[None] * 21]
        self.cleaned = 0

    def age(self, entry: list[int]) -> int:
        return (self.generation[entry[1]] - entry[2]) % 16

    def clean(self, line: list[list[int] | None]) -> None:
        line[:] = [e if e and self.age(e) < self.horizons[e[1]] else None for e in line]

    def evicted(self, list_: int, hash: int, keep: bool, size: int) -> None:
        while len(self.lines) * 18 < size:
            self.lines += [[e and [*e] for e in line] for line in self.lines]
        self.evictions[list_] += 1
        if self.evictions[list_] >= max(size // 4, len(self.lines)):
            self.evictions[list_] = 0
            self.generation[list_] += 1
        self.cleaned = (self.cleaned + 1) % len(self.lines)
        self.clean(self.lines[self.cleaned])
        if keep:
            line = self.lines[hash % len(self.lines)]
            self.clean(line)
            worth = [1 - self.age(e) / self.horizons[e[1]] if e else -1 for e in line]
            line[worth.index(min(worth))] = [self.tag(hash), list_, self.generation[list_] % 16]

    @staticmethod
    def tag(hash: int) -> int:
        return (hash >> 32) % 0xFFFF + 1

    def take(self, hash: int) -> tuple[int, int] | None:
        line = self.lines[hash % len(self.lines)]
        for place, entry in enumerate(line):
            if entry and entry[0] == self.tag(hash) and self.age(entry) < self.horizons[entry[1]]:
                line[place] = None
                return entry[1], self.age(entry)
        return None


class S3Fifo(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.ghosts = Ghosts(4, 1)

    def add(self, chain: list[Newcomer], now_ns: int) -> None:
        for new in reversed(chain):
            known = self.ghosts.take(new.hash)
            item = self.here[new.id] = Item(
                new.id, "soft" if new.soft_pin else "main" if known else "small"
            )
            self.lists.of(item.list).append(item)

    def hit(self, chain: list[int], now_ns: int) -> None:
        for id in chain:
            if id in self.here:
                self.here[id].hits = min(3, self.here[id].hits + 1)

    def victim(self, now_ns: int, held: HELD) -> int | None:
        self.lists.restore(now_ns)
        while True:
            num = {n: sum(i.list == n for i in self.here.values()) for n in ("small", "main")}
            full = 10 * num["small"] >= num["small"] + num["main"]
            order = ("small", "main", "soft") if full else ("main", "small", "soft")
            found = [self.lists.coldest(n, held, now_ns) for n in order]
            item = next((item for item in found if item), None)
            if item is None or item.hits == 0:
                return item and item.id
            self.lists.drop(item, item.list)
            item.hits = 0 if item.list == "small" else item.hits - 1
            item.list = "main" if item.list == "small" else item.list
            self.lists.of(item.list).append(item)

    def evict(self, id: int, hash: int) -> None:
        if self.here[id].list == "small":
            self.ghosts.evicted(0, hash, True, len(self.here))
        self.take_out(id)


class Cost(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.ghosts = Ghosts(15, 4)
        self.clock = 0
        self.share = 0.1
        self.full: dict[int, int] = {}

    def set_part(self, item: Item, part: str) -> None:
        item.list = f"{part} {item.range}"

    def num(self, part: str, range_: int) -> int:
        return sum(item.list == f"{part} {range_}" for item in self.here.values())

    def remembers(self, new: Newcomer, alone: bool) -> bool:
        memory = self.ghosts.take(new.hash)
        step = (1 if alone else 4) / max(1, len(self.here))
        if memory and memory[0] == 1:
            self.share = max(0.02, self.share - step)
        elif memory and memory[1] < 2:
            self.share = min(0.9, self.share + step)
        return memory is not None

    def add(self, chain: list[Newcomer], now_ns: int) -> None:
        self.clock = max(self.clock, now_ns >> 30)
        waiting: list[Item] = []
        verdict: bool | None = None
        before = None
        for new in chain:
            parent = None if new.parent is None else self.here.get(new.parent)
            if parent:
                self.lists.drop(parent, parent.list)
                parent.children += 1
            if parent is None or parent is not before:
                verdict = False if parent and parent.list.startswith("new") else None
                waiting = []
            if verdict is not False and (parent is None or new.hash >> 62 == 0):
                verdict = self.remembers(new, parent is None)
                for item in waiting if verdict else ():
                    if item.list.startswith("new"):
                        self.set_part(item, "main")
                waiting = []
            worth = (new.recompute_ns << 8) // new.bytes
            item = Item(new.id, "", parent, touched=self.clock)
            item.range = min(15, max(0, worth.bit_length() - 1)) if new.recompute_ns else 8
            self.set_part(item, "soft" if new.soft_pin else "main" if verdict else "new")
            self.here[new.id] = item
            self.full[item.range] = self.num("new", item.range) + self.num("main", item.range)
            self.lists.of(item.list).append(item)
            if verdict is None:
                waiting.append(item)
            before = item

    def hit(self, chain: list[int], now_ns: int) -> None:
        self.clock = max(self.clock, now_ns >> 30)
        for item in [self.here[id] for id in chain if id in self.here]:
            new = item.list.startswith("new")
            if new and self.clock - item.touched < 2:
                continue
            self.lists.drop(item, item.list)
            if new:
                self.set_part(item, "main")
            item.touched = self.clock
            if item.children == 0:
                self.lists.of(item.list).append(item)

    def victim(self, now_ns: int, held: HELD) -> int | None:
        self.clock = max(self.clock, now_ns >> 30)
        self.lists.restore(now_ns)
        best: tuple[int, Item] | None = None
        for range_ in range(16):
            young = self.lists.coldest(f"new {range_}", held, now_ns)
            proven = self.lists.coldest(f"main {range_}", held, now_ns)
            oldest = proven or young
            if oldest is None:
                continue
            stale = (self.clock - oldest.touched + 1) << (15 - range_)
            if best is None or stale > best[0]:
                fits = self.num("main", range_) <= (1.0 - self.share) * self.full[range_]
                best = stale, young if young and (fits or not proven) else oldest
        if best is None:
            for range_ in range(16):
                item = self.lists.coldest(f"soft {range_}", held, now_ns)
                if item:
                    stale = (self.clock - item.touched + 1) << (15 - range_)
                    best = best if best and best[0] >= stale else (stale, item)
        return best and best[1].id

    def evict(self, id: int, hash: int) -> None:
        item = self.here[id]
        keep = item.parent is None or hash >> 62 == 0
        self.ghosts.evicted(int(not item.list.startswith("new")), hash, keep, len(self.here))
        self.take_out(id)

    def take_out(self, id: int) -> None:
        item = self.here[id]
        super().take_out(id)
        parent = item.parent
        if parent and not parent.gone:
            parent.children -= 1
            if parent.children == 0:
                self.place(parent)

    def place(self, item: Item) -> None:
        """Where its last use puts it, if that is within eight steps of an end; else the hot end."""
        items = self.lists.of(item.list)
        cold = next((k for k, x in enumerate(items) if x.touched >= item.touched), len(items))
        hot = next((k for k in range(len(items), 0, -1) if items[k - 1].touched <= item.touched), 0)
        if cold <= 8:
            items.insert(cold, item)
        else:
            items.insert(hot if len(items) - hot < 8 else len(items), item)
