"""Jobs of a `BlockStore` that end when a test says so, with contents that can be compared.

The content of a page is, in this model, all tokens up to the end of its block.
"""

from collections import deque
from concurrent.futures import Future

from inlay.cache.block_store import IoJob
from inlay.core.errors import InlayError

GARBAGE = "garbage"


class PlayedBlocks:
    """Takes the place of a `BlockStore`'s threads.

    Attributes:
        pages: page id -> content.
        objects: digest -> content.
    """

    def __init__(self, num_pages):
        self.pages = [None] * num_pages
        self.objects = {}
        self.finished = deque()
        self.begun = []
        self._queued = []

    def find(self, digests):
        return self._add(IoJob("find", list(digests)))

    def load(self, digests, page_ids):
        return self._add(IoJob("load", list(digests), list(page_ids)))

    def save(self, digests, page_ids, parents, recompute_us=0):
        job = IoJob("save", list(digests), list(page_ids), parents=list(parents))
        job.recompute_us = recompute_us
        return self._add(job)

    def _add(self, job):
        job.future = Future()
        self._queued.append(job)
        return job

    def jobs(self, kind=None):
        """What has neither ended nor been cancelled, in order."""
        self._queued = [job for job in self._queued if not job.future.cancelled()]
        return [job for job in (*self.begun, *self._queued) if kind in (None, job.kind)]

    def begin(self, job):
        """From now on the job cannot be cancelled."""
        assert job.future.set_running_or_notify_cancel()
        self._queued.remove(job)
        self.begun.append(job)

    def end(self, job, *, error=False, seconds=0.001, lose=()):
        """Do the job; `lose`: digests that are not there any more."""
        if job in self._queued:
            self.begin(job)
        self.begun.remove(job)
        job.seconds = seconds
        if error:
            job.error = InlayError("the store is gone")
            for page_id in job.page_ids if job.kind == "load" else ():
                self.pages[page_id] = GARBAGE
        elif job.kind == "find":
            there = [digest in self.objects for digest in job.digests]
            job.found = [*there, False].index(False)
        elif job.kind == "load":
            job.tier = "host"
            job.good = [d in self.objects and d not in lose for d in job.digests]
            for digest, page_id, good in zip(job.digests, job.page_ids, job.good, strict=True):
                self.pages[page_id] = self.objects[digest] if good else GARBAGE
        else:
            assert job.recompute_us > 0
            for digest, page_id, parent in zip(job.digests, job.page_ids, job.parents, strict=True):
                assert self.pages[page_id] not in (None, GARBAGE)
                before = self.objects.get(parent, [])
                assert list(self.pages[page_id][: len(before)]) == list(before), "no parent of it"
                self.objects.setdefault(digest, self.pages[page_id])
        self.finished.append(job)

    def end_all(self, **how):
        """Do everything that is queued."""
        for job in self.jobs():
            self.end(job, **how)

    def wait(self, timeout_s):
        self.end_all()
        return bool(self.finished)

    def close(self):
        for job in self.jobs():
            if not job.cancel():
                self.end(job)
