"""The one tree of errors. Control paths raise these; data paths return statuses.

    InlayError
    ├── ArgumentError (ValueError)     a call's argument has a wrong value, shape or type
    │   └── NotFiniteError             weights hold a NaN or an infinity
    ├── ConfigError (ValueError)       a configuration value is out of its allowed range
    ├── RequestError                   a request cannot be served as written
    │   ├── ContextLengthError         prompt and output do not fit into the context
    │   └── StructureError             a JSON schema, regex or choice list cannot be compiled
    ├── OverloadedError                the queue is full: try again after `retry_after_s`
    ├── AdmissionError                 an objective cannot be kept: try again after `retry_after_s`
    ├── ModelError                     a model cannot be loaded
    │   ├── ModelNotFoundError         no such directory, hub name or file in it
    │   ├── ModelFileError             a file is there but damaged or inconsistent
    │   ├── UnsupportedModelError      architecture, weight format or option not supported
    │   └── ResourceError              not enough disk or memory, known before the work starts
    ├── EngineError                    the engine failed while running
    │   ├── EngineStartError           the engine's process did not become ready
    │   ├── RankLostError              a process that shares the model's layers is gone, or late
    │   ├── EngineDiedError            the engine's process ended; its requests are lost
    │   └── NoInstanceError            no instance of a deployment takes requests
    ├── DeploymentError                a deployment is not there, or cannot be as it was asked to be
    ├── EndpointError                  a server that was asked is not there or refused, `status`
    ├── OutOfPagesError                the page pool has no free page (handled by the scheduler)
    ├── TransferError                  bytes could not be moved
    │   ├── SegmentError               about the registered memory `segment`
    │   │   ├── SegmentNotFoundError (KeyError)       the peer has none of this name
    │   │   ├── SegmentRangeError (ValueError)        a range reaches beyond it
    │   │   ├── SegmentAccessError (PermissionError)  it is read-only, or not offered for this
    │   │   ├── SegmentOverlapError (ValueError)      other registered memory lies there
    │   │   ├── SegmentClosedError                    it is deregistered
    │   │   └── GrantError (PermissionError)          a write without the grant of its range
    │   ├── PeerError                  about the engine at the address `peer`
    │   │   ├── PeerUnreachableError       nobody answers there
    │   │   ├── PeerDiedError              its process ended, or closed the connection
    │   │   ├── PeerRefusedError           it holds another token
    │   │   └── ProtocolError              no Inlay engine, or damaged frames
    │   │       └── ProtocolVersionError       no version that both speak
    │   ├── TransferTimeoutError (TimeoutError)  the deadline passed, `remote_settled`
    │   ├── TransferCancelledError     the batch was cancelled, `remote_settled`
    │   ├── ChecksumError              bytes came damaged again and again, `segment`, `peer`
    │   ├── StorageFullError (OSError)     no room on the disk of a file segment, `errno`
    │   ├── FileTransferError (OSError)    the system did not read or write the file, `errno`
    │   ├── DeviceTransferError        a CUDA device did not copy bytes of its memory
    │   ├── TransportUnavailableError  what moves the bytes does not work here
    │   └── EngineClosedError          the transfer engine is closed, or the parent's of a fork
    ├── StoreError                 the key-value store did not do what it was asked
    │   ├── KeyNotFound (KeyError)     there is no object under this key
    │   ├── ObjectExists               there is one, and it was to be an error
    │   ├── StoreFull                  no room, and nothing may be evicted for it
    │   ├── StoreUnavailable           the master cannot be reached, or is no use
    │   │   ├── StoreRefused               it holds another token
    │   │   └── StoreVersionError          no version that both speak
    │   ├── ObjectDamaged              no replica has the bytes that were put
    │   ├── StoreTimeout (TimeoutError)  the call's time was over
    │   └── StoreClosed                the store is closed, or the parent's of a fork
    ├── WeightsError               a checkpoint could not be published or pulled
    │   ├── WeightsMismatchError (ValueError)  its tensors are not those that are wanted
    │   ├── WeightsConflictError       versions contradict each other, or what is under way
    │   └── WeightsPartialError        some instances of a deployment have them, others not
    ├── TrainingError              a loss or gradient of training is not finite
    ├── TraceError (ValueError)        requests of a trace are not as they must be, `request`
    ├── DataError (ValueError)         training data are not as they must be
    ├── WaitTimeoutError (TimeoutError)  a wait ended before what it waited for
    └── AddressInUseError              a port is taken

A message says what happened, with which values, and what to do about it. Servers map
`http_status` and `code` to the OpenAI error form; the command line prints the message alone.
"""

from typing import ClassVar


class InlayError(Exception):
    """Base of every error that Inlay raises on purpose."""

    code: ClassVar[str] = "internal_error"
    http_status: ClassVar[int] = 500


class ArgumentError(InlayError, ValueError):
    """A call's argument has a wrong value, shape or type; the message names it."""

    code = "invalid_argument"
    http_status = 400


class NotFiniteError(ArgumentError):
    """Weights hold a NaN or an infinity, or a value that becomes one in their format."""


class ConfigError(InlayError, ValueError):
    """A configuration value is outside its allowed range; the message gives both."""

    code = "invalid_config"
    http_status = 400


class RequestError(InlayError):
    """A request cannot be served as written.

    Attributes:
        param: the request's field at fault, or None.
    """

    code = "invalid_request"
    http_status = 400

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """Prompt and requested output do not fit into the model's context."""

    code = "context_length_exceeded"


class AdapterNotFoundError(RequestError):
    """No adapter of this name is loaded."""

    code = "adapter_not_found"
    http_status = 404


class AdapterInUseError(RequestError):
    """The adapter cannot be unloaded now: requests use it."""

    code = "adapter_in_use"
    http_status = 409


class StructureError(RequestError):
    """A JSON schema, regex or choice list cannot be compiled."""

    code = "invalid_structure"


class OverloadedError(InlayError):
    """The queue is full.

    Attributes:
        retry_after_s: when trying again makes sense, in seconds.
    """

    code = "overloaded"
    http_status = 503

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class AdmissionError(InlayError):
    """A request was refused at arrival: its objectives, or those of others, would not be kept.

    Attributes:
        retry_after_s: when it would probably be taken, in seconds.
    """

    code = "not_admitted"
    http_status = 429

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelError(InlayError):
    """A model cannot be loaded."""

    code = "model_error"


class ModelNotFoundError(ModelError):
    """There is no such model directory, hub name, or file inside it."""

    code = "model_not_found"
    http_status = 404


class ModelFileError(ModelError):
    """A model file is damaged, or disagrees with the others."""

    code = "model_file_damaged"


class UnsupportedModelError(ModelError):
    """The architecture, weight format or an option in config.json is not supported."""

    code = "model_unsupported"


class ResourceError(ModelError):
    """Disk or memory will not do; raised before the work starts."""

    code = "insufficient_resources"


class EngineError(InlayError):
    """The engine failed while running a request."""

    code = "engine_error"


class EngineStartError(EngineError):
    """The engine's process did not become ready."""

    code = "engine_start_failed"
    http_status = 503


class InstanceVersionError(EngineError):
    """Dispatcher and instance speak different versions of their protocol."""

    code = "instance_version"


class RankLostError(EngineError):
    """A process that shares the model's layers is gone, or late."""

    code = "rank_lost"


class EngineDiedError(EngineError):
    """The engine's process ended; the requests it held are lost."""

    code = "engine_died"
    http_status = 503


class NoInstanceError(EngineError):
    """No instance of a deployment takes requests; the message says how each one is.

    Attributes:
        retry_after_s: when one is expected, in seconds.
    """

    code = "no_instance"
    http_status = 503

    def __init__(self, message: str, retry_after_s: float = 5.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeploymentError(InlayError):
    """A deployment is not there, is there already, or cannot be as it was asked to be."""

    code = "deployment_error"
    http_status = 409


class EndpointError(InlayError):
    """A server that Inlay asked could not be reached, broke off, or answered with an error.

    Attributes:
        status: HTTP status, or None where there was no answer.
    """

    code = "endpoint_error"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class OutOfPagesError(InlayError):
    """The page pool has no free page and none that can be evicted."""

    code = "out_of_pages"
    http_status = 503


class TransferError(InlayError):
    """Bytes could not be moved.

    Attributes:
        segment: name of the registered memory at fault, or None.
        peer: address of the engine at the other end, or None.
    """

    code = "transfer_error"
    segment: str | None = None
    peer: str | None = None


class SegmentError(TransferError):
    """Registered memory is not there, or not for this use."""


class SegmentNotFoundError(SegmentError, KeyError):
    """The peer has no segment of this name; the message names those it has."""

    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class SegmentRangeError(SegmentError, ValueError):
    """A range reaches beyond its segment."""


class SegmentAccessError(SegmentError, PermissionError):
    """The memory is read-only, or its owner does not offer it for this operation."""


class SegmentOverlapError(SegmentError, ValueError):
    """Memory that is already registered lies in the same place."""


class SegmentClosedError(SegmentError):
    """The segment is deregistered."""


class GrantError(SegmentError, PermissionError):
    """A peer lets a range of its segment be written only under a grant, which this write lacks.

    Its time may be over. The peer took none of the bytes, or stopped taking them.
    """


class PeerError(TransferError):
    """The engine at the other end fails; `peer` is its address."""


class PeerUnreachableError(PeerError):
    """Nobody answers at the address, or no longer takes what is sent."""


class PeerDiedError(PeerError):
    """The peer's process ended or closed the connection; what it held in flight is lost."""


class PeerRefusedError(PeerError):
    """The peer holds another token."""


class ProtocolError(PeerError):
    """What answers is no Inlay transfer engine, or sends damaged frames."""


class ProtocolVersionError(ProtocolError):
    """The two engines speak no common version; the message has both ranges."""


class TransferTimeoutError(TransferError, TimeoutError):
    """A batch was not complete at its deadline.

    Attributes:
        remote_settled: whether nothing of it can land in remote memory any more.
    """

    code = "transfer_timeout"
    http_status = 504
    remote_settled: bool = True


class TransferCancelledError(TransferError):
    """A batch was cancelled before it was complete.

    Attributes:
        remote_settled: whether nothing of it can land in remote memory any more.
    """

    remote_settled: bool = True


class ChecksumError(TransferError):
    """Verified bytes came damaged four times; where they landed, nothing is to be used.

    Attributes:
        segment: name of the peer's segment.
        peer: its address.
    """

    segment: str = ""
    peer: str = ""


class StorageFullError(TransferError, OSError):
    """The disk, or what the user or process may take of it, has no room for a file's bytes.

    Attributes:
        errno: what the system said, or None where another process met it.
    """


class FileTransferError(TransferError, OSError):
    """The system did not open, read or write the file of a segment; the message has the path.

    Attributes:
        errno: what the system said, or None where another process met it.
    """


class DeviceTransferError(TransferError):
    """A CUDA device did not copy the bytes of a segment; the message has what its driver says.

    After some errors (an illegal access of a kernel, say) a device does nothing more for the
    process.
    """


class TransportUnavailableError(TransferError):
    """What would move the bytes does not work here; the message says why."""


class EngineClosedError(TransferError):
    """The transfer engine is closed, or was made by the parent of this forked process."""


class StoreError(InlayError):
    """The key-value store did not do what it was asked."""

    code = "store_error"


class KeyNotFound(StoreError, KeyError):
    """There is no object under this key: never put, removed, evicted, or lost."""

    code = "key_not_found"
    http_status = 404
    __str__ = Exception.__str__  # a KeyError shows its message in quotes


class ObjectExists(StoreError):
    """The key has an object, and `if_exists="error"` was asked for."""

    code = "object_exists"
    http_status = 409


class StoreFull(StoreError):
    """No segment has room, and what lies there is pinned, leased or may not be evicted."""

    code = "store_full"
    http_status = 507


class ObjectDamaged(StoreError):
    """No replica of the object has its checksum any more; nothing was returned of it."""

    code = "object_damaged"


class StoreUnavailable(StoreError):
    """The master cannot be reached, or what answers there is of no use."""

    code = "store_unavailable"
    http_status = 503


class StoreRefused(StoreUnavailable):
    """The master holds another token."""


class StoreVersionError(StoreUnavailable):
    """The master speaks no version of the protocol that this process speaks."""


class StoreTimeout(StoreError, TimeoutError):
    """A call of the store was not over within its timeout."""

    code = "store_timeout"
    http_status = 504


class StoreClosed(StoreError):
    """The store is closed, or was made by the parent of this forked process."""


class WeightsError(InlayError):
    """A checkpoint could not be published or pulled; the message says which, and by whom."""

    code = "weights_error"
    http_status = 502


class WeightsMismatchError(WeightsError, ValueError):
    """Tensors lack, or have another shape or dtype than is wanted; the message names them."""

    code = "weights_mismatch"
    http_status = 400


class WeightsConflictError(WeightsError):
    """Versions contradict each other, or another update is under way."""

    code = "weights_conflict"
    http_status = 409


class NotPausedError(RequestError):
    """Generations that should go on are not paused, or other weights have computed them than their
    handles say; none goes on."""

    code = "not_paused"
    http_status = 409


class WeightsPartialError(WeightsError):
    """Some instances of a deployment have new weights, others have not; the message says which."""

    code = "weights_partial"


class TrainingError(InlayError):
    """Training cannot go on: a loss or gradient is not finite. The state before it is saved; the
    message says where.
    """

    code = "training_failed"


class TraceError(InlayError, ValueError):
    """A trace of requests is not as it must be.

    Attributes:
        reason: what is wrong, without the place.
        request: number of the request at fault, from 0; None if it is the whole.
    """

    code = "invalid_trace"
    http_status = 400

    def __init__(self, reason: str, request: int | None = None) -> None:
        super().__init__(reason if request is None else f"request {request}: {reason}")
        self.reason = reason
        self.request = request


class DataError(InlayError, ValueError):
    """Training data are not as they must be; the message has file, line and column."""

    code = "invalid_data"
    http_status = 400


class WaitTimeoutError(InlayError, TimeoutError):
    """A wait with a time limit ended before what it waited for was done."""

    code = "wait_timeout"
    http_status = 504


class AddressInUseError(InlayError):
    """The address to listen on is taken by another process."""

    code = "address_in_use"
