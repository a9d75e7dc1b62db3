"""Page ids and how many holders each has. Knows no memory and no meaning of a page."""

from inlay.core.errors import OutOfPagesError


class PagePool:
    """Hands out page ids 0..num_pages-1 and counts references.

    A page is *free* (in the pool), *used* (one reference or more) or *idle* (none, but kept
    because its content may be used again). Who keeps idle pages decides when they come back
    through `put_back`; the pool only counts them.

    Cost: every call is O(1).
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_used = 0
        self._free = list(range(num_pages - 1, -1, -1))
        self._references = [0] * num_pages

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Pages that hold content but have no reference."""
        return self.num_pages - self.num_used - len(self._free)

    def references(self, page_id: int) -> int:
        """How many holders a page has."""
        return self._references[page_id]

    def take(self) -> int:
        """Take a free page, with one reference.

        Raises:
            OutOfPagesError: no page is free.
        """
        if not self._free:
            raise OutOfPagesError(f"none of the {self.num_pages} pages is free")
        page_id = self._free.pop()
        self._references[page_id] = 1
        self.num_used += 1
        return page_id

    def retain(self, page_id: int) -> bool:
        """Add a reference to a used or idle page; True if the page was idle."""
        self._references[page_id] += 1
        if self._references[page_id] == 1:
            self.num_used += 1
            return True
        return False

    def drop(self, page_id: int) -> bool:
        """Remove a reference; True if it was the last one: the page is idle now."""
        left = self._references[page_id] - 1
        assert left >= 0, f"page {page_id} is dropped more often than it was taken"
        self._references[page_id] = left
        if left == 0:
            self.num_used -= 1
            return True
        return False

    def put_back(self, page_id: int) -> None:
        """Make an idle page free."""
        assert self._references[page_id] == 0, f"page {page_id} is in use"
        self._free.append(page_id)

    def audit(self) -> None:
        """Check the counts against each other. O(num_pages); for tests."""
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        assert all(self._references[page] == 0 for page in self._free), "a free page is in use"
        assert self.num_used == sum(1 for count in self._references if count > 0)
        assert self.num_free + self.num_idle + self.num_used == self.num_pages
        assert self.num_idle >= 0
