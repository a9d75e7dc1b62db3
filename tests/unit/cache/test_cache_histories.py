"""Random histories against a model that knows only which prefixes were computed."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inlay.cache import BlockRemoved, BlockStored, PagedKvCache
from inlay.core.block_hash import ROOT
from inlay.core.errors import OutOfPagesError

PAGE, PAGES = 2, 12


class Histories(RuleBasedStateMachine):
    """Each page carries, in the model, the tokens whose KV was written to it."""

    def __init__(self):
        super().__init__()
        self.cache = PagedKvCache(
            num_pages=PAGES,
            page_tokens=PAGE,
            namespace_key=lambda salt, adapter, weights: b"key",
        )
        self.cache.record_events(True)
        self.content = {}  # page -> all tokens up to its end
        self.live = []  # [hold, names, tokens, computed]
        self.remote = {}  # digest -> parent, as a listener of events sees it
        self.loads = []  # [hold of pages that something writes to]
        self.pinned = Counter()
        self.kept = {}  # content of pinned pages

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14))
    def start(self, tokens):
        names = self.cache.names()
        names.extend(tokens)
        match = self.cache.match_prefix(names, len(tokens) - 1)
        before = self.cache.counts()
        try:
            hold = self.cache.hold(match, len(tokens))
        except OutOfPagesError:
            assert self.cache.counts() == before
            needed = -(-len(tokens) // PAGE) - match.num_blocks
            room = before.free + before.idle - self.idle_among(match)
            assert needed > room - len(self.pinned)
            return
        for block in range(match.num_blocks):
            assert self.content[hold.pages[block]] == tokens[: (block + 1) * PAGE]
        self.live.append([hold, names, tokens, match.num_tokens])

    def idle_among(self, match):
        digests = match.names.digests[: match.num_blocks]
        pages = [self.cache._index.page_of(digest) for digest in digests]
        return sum(1 for page in pages if self.cache._pool.references(page) == 0)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), count=st.integers(1, 6))
    def compute(self, data, count):
        entry = data.draw(st.sampled_from(self.live))
        hold, names, tokens, computed = entry
        stop = min(len(tokens), computed + count)
        if any(set(load.pages) & set(hold.pages) for load in self.loads):
            return
        for position in range(computed, stop):
            page = hold.pages[position // PAGE]
            assert self.cache._pool.references(page) == 1, "writes to a shared page"
            self.content[page] = tokens[: position + 1]
        entry[3] = stop
        self.cache.publish(hold, names, stop)
        for block in range(stop // PAGE):
            assert self.content[hold.pages[block]] == tokens[: (block + 1) * PAGE]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def append(self, data, token):
        entry = data.draw(st.sampled_from(self.live))
        hold, names, tokens, computed = entry
        if computed < len(tokens):
            return
        pages = list(hold.pages)
        try:
            self.cache.reserve(hold, len(tokens) + 1)
        except OutOfPagesError:
            assert list(hold.pages) == pages
            return
        tokens = [*tokens, token]
        entry[2] = tokens
        if len(tokens) - names.num_tokens >= PAGE:
            names.extend(tokens[names.num_tokens :])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data):
        hold, names, tokens, computed = data.draw(st.sampled_from(self.live))
        twin = self.cache.fork(hold, computed)
        twin_names = self.cache.names()
        twin_names.extend(tokens)
        try:
            self.cache.reserve(twin, len(tokens))
        except OutOfPagesError:
            self.cache.release(twin)
            return
        self.live.append([twin, twin_names, list(tokens), computed // PAGE * PAGE])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data):
        entry = data.draw(st.sampled_from(self.live))
        self.live.remove(entry)
        self.cache.release(entry[0])

    @rule(tokens=st.lists(st.integers(0, 1), min_size=PAGE, max_size=14), cool=st.booleans())
    def hint(self, tokens, cool):
        names = self.cache.names()
        names.extend(tokens)
        if not cool:
            assert self.cache.warm(names) == self.cache.match_prefix(names, len(tokens)).num_blocks
            return
        pages = self.cache.cool(names)
        assert self.cache.coldest(len(pages)) == pages
        for page in pages:
            assert self.content[page] == tokens[: len(self.content[page])]

    @rule()
    def reset(self):
        self.cache.reset()
        assert self.cache.counts().idle == 0

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def adopt(self, data):
        entry = data.draw(st.sampled_from(self.live))
        hold, names, tokens, computed = entry
        named = self.cache.adopt(hold, names, len(tokens) - 1)
        assert named == hold.num_named * PAGE
        for block in range(named // PAGE):
            assert self.content[hold.pages[block]] == tokens[: (block + 1) * PAGE]
        entry[3] = max(computed, named)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def begin_load(self, data):
        hold, names, tokens, computed = data.draw(st.sampled_from(self.live))
        first, last = -(-computed // PAGE), len(hold.pages)
        if first < last and not any(set(x.pages) & set(hold.pages) for x in self.loads):
            self.loads.append(self.cache.share(hold, data.draw(st.integers(first, last - 1)), last))

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def cut_load_off(self, data):
        load = data.draw(st.sampled_from(self.loads))
        for hold, *_ in self.live:
            mine = [n for n, page in enumerate(hold.pages) if page in load.pages]
            if mine:
                pages = list(hold.pages)
                try:
                    self.cache.renew(hold, max(mine[0], hold.num_named), mine[-1] + 1)
                except OutOfPagesError:
                    assert list(hold.pages) == pages
                else:
                    assert not set(hold.pages) & set(load.pages)

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def end_load(self, data):
        load = data.draw(st.sampled_from(self.loads))
        self.loads.remove(load)
        for page in load.pages:
            self.content[page] = None
        self.cache.release(load)

    @rule(data=st.data(), count=st.integers(1, 4))
    def pin(self, data, count):
        computed = {
            page for hold, _, _, done in self.live for page in list(hold.pages)[: done // PAGE]
        }
        there = sorted(set(self.cache._index._blocks) | computed)
        pages = data.draw(st.permutations(there))[:count]
        self.cache.pin(pages)
        self.pinned += Counter(pages)
        self.kept |= {page: self.content[page] for page in pages}

    @precondition(lambda self: self.pinned)
    @rule(count=st.integers(1, 4))
    def unpin(self, count):
        pages = list(self.pinned)[:count]
        self.cache.unpin(pages)
        self.pinned -= Counter(pages)

    @invariant()
    def pinned_pages_keep_their_content(self):
        for page in self.pinned:
            assert self.content[page] == self.kept[page]

    @invariant()
    def everything_is_accounted_for(self):
        self.cache.audit([entry[0] for entry in self.live] + self.loads)
        counts = self.cache.counts()
        assert counts.free + counts.idle + counts.used == counts.total == PAGES

    @invariant()
    def events_tell_the_whole_index(self):
        for event in self.cache.take_events():
            if isinstance(event, BlockStored):
                assert event.parent == ROOT or event.parent in self.remote
                self.remote[event.digest] = event.parent
            else:
                assert isinstance(event, BlockRemoved)
                assert event.digest not in self.remote.values(), "a parent went before its child"
                del self.remote[event.digest]
        assert set(self.remote) == set(self.cache._index._pages)


TestHistories = Histories.TestCase
TestHistories.settings = settings(stateful_step_count=40)
