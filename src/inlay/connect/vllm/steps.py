"""What the scheduler's half of the connector tells the workers' half with each step."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class BlockLoad:
    """Blocks of one request to be filled from the store.

    Attributes:
        request_id: of vLLM's request, which waits for them.
        digests: names of the blocks.
        block_ids: where they go in vLLM's cache.
    """

    request_id: str
    digests: list[bytes]
    block_ids: list[int]


@dataclass(slots=True)
class BlockSave:
    """Blocks that are complete once this step has run.

    Attributes:
        digests, parents: names of the blocks and of those before them, `ROOT` for none.
        block_ids: where they are.
    """

    digests: list[bytes] = field(default_factory=list)
    parents: list[bytes] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)


@dataclass(slots=True)
class BlockFetch:
    """Blocks of one request to be fetched from the instance that computed them.

    Attributes:
        request_id: of vLLM's request here, which waits for them.
        block_ids: where they go; as many as `remote_block_ids`. Empty: the other instance is only
            told that nothing will be fetched.
        remote_block_ids: where they are there.
        addresses: of the other instance's workers, by tensor-parallel rank.
        remote_request_id: what the other instance holds them under.
    """

    request_id: str
    block_ids: list[int]
    remote_block_ids: list[int]
    addresses: list[str]
    remote_request_id: str


@dataclass(slots=True)
class StepWork:
    """All that is new with one step.

    Attributes:
        holds: requests whose blocks are kept for another instance, and until when: seconds from
            the step on.
    """

    loads: list[BlockLoad] = field(default_factory=list)
    fetches: list[BlockFetch] = field(default_factory=list)
    saves: BlockSave = field(default_factory=BlockSave)
    holds: dict[str, float] = field(default_factory=dict)
