"""All errors a caller of Braid can meet, in one tree.

    BraidError
    ├── InvalidRequest
    │   ├── UndecodableMessage
    │   ├── TooManyParts
    │   ├── InvalidTensor
    │   ├── OtherExtents
    │   ├── InvalidUpload
    │   │   └── UploadTooLarge
    │   └── InvalidArtefact
    ├── ModelImportError
    │   ├── UnsupportedOperators
    │   └── ImportLimitExceeded
    ├── NotFound
    │   ├── ModelNotFound
    │   ├── VersionNotFound
    │   ├── JobNotFound
    │   └── ScheduleNotFound
    ├── ResourceExhausted           carries ``retry_after_s`` where waiting helps
    │   ├── QueueFull
    │   ├── DeviceOutOfMemory
    │   └── DiskFailure
    ├── Unavailable                 true for a moment only: try again
    │   ├── ModelLoading
    │   ├── NoNodeUp
    │   ├── Draining
    │   ├── StoreUnavailable
    │   │   └── DatabaseUnavailable
    │   ├── SystemShortage
    │   └── WorkerRestarting
    │       └── WorkerDied
    ├── DeadlineExceeded
    │   └── RunStopped
    │       └── RunTooLong
    ├── RequestCancelled
    ├── PreconditionFailed          legal, but not in the present state
    │   ├── ModelQuarantined
    │   └── DamagedArtefact
    ├── TakenOver
    ├── NotOffered
    ├── Unauthenticated
    ├── PermissionDenied
    ├── SearchTooLarge
    ├── WorkerFault
    │   ├── DeviceLost
    │   └── ImpossibleLatency
    └── StartupError

No class knows a transport; ``braid.server.rpc.status`` maps each one to a gRPC status code.
"""

import enum


class BraidError(Exception):
    """Base class of all errors that Braid raises on purpose. The message says what to do."""


class InvalidRequest(BraidError):
    """The caller sent something wrong."""


class UndecodableMessage(InvalidRequest):
    """A message is not what its method takes."""

    def __init__(self, method: str) -> None:
        super().__init__(
            f"the message cannot be decoded as a request of {method}; generate the client's code "
            "from the .proto files of this server's version, and check that nothing changes "
            "messages on their way"
        )


class TooManyParts(InvalidRequest):
    """A message has more parts than are read, however few bytes they take."""

    def __init__(self, limit: int, what: str, advice: str = "send fewer in one message") -> None:
        super().__init__(f"the message has more than {limit} {what}; {advice}")


class InvalidTensor(InvalidRequest):
    """A tensor has the wrong name, dtype, rank, shape or byte count."""


class OtherExtents(InvalidRequest):
    """A run gives outputs of other extents than its plan has room for."""


class InvalidUpload(InvalidRequest):
    """An upload is malformed."""


class InvalidArtefact(InvalidRequest):
    """A graph, plan or schedule does not parse or does not verify."""


class UploadTooLarge(InvalidUpload):
    """An upload is over the size limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"the upload is larger than {limit_bytes} bytes; "
            "raise BRAID_MAX_UPLOAD_BYTES on the server or send a smaller model"
        )


class ModelImportError(BraidError):
    """The uploaded model cannot be imported; the message gives the reason."""


class UnsupportedOperators(ModelImportError):
    """The model uses operators that Braid cannot lower."""

    def __init__(self, reasons: tuple[str, ...], page: str = "docs/onnx-operators.md") -> None:
        super().__init__(
            f"the model cannot be imported, for {len(reasons)} reason(s): {'; '.join(reasons)}. "
            f"Export it without them (see {page})"
        )
        self.reasons = reasons


class ImportLimitExceeded(ModelImportError):
    """The importer was stopped at one of its limits: memory, CPU time or wall clock."""

    def __init__(self, message: str, limit: str = "") -> None:
        super().__init__(message)
        self.limit = limit  # as ImportLimits calls it; "" if it is not one of them


class NotFound(BraidError):
    """The object of the request does not exist."""


class ModelNotFound(NotFound):
    """No model has this name."""

    def __init__(self, model: str) -> None:
        super().__init__(f"no model named {model!r}; `braid models` lists the registered ones")


class VersionNotFound(NotFound):
    """The model exists, this version does not."""

    def __init__(self, model: str, version: str, versions: tuple[int, ...]) -> None:
        have = ", ".join(map(str, versions)) or "none"
        super().__init__(f"model {model!r} has no version {version!r}; versions: {have}")


class JobNotFound(NotFound):
    """No job has this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}; `braid jobs` lists the known ones")


class ScheduleNotFound(NotFound):
    """The model has no schedule for this device and batch size (yet)."""


class ResourceExhausted(BraidError):
    """A bounded resource is used up for now; ``retry_after_s`` is set where waiting helps."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(ResourceExhausted):
    """A model's request queue is full."""


class DeviceOutOfMemory(ResourceExhausted):
    """The device or the shared memory has no room for this request."""


class DiskTrouble(enum.Enum):
    """Kind of failure of a disk, and what to do about it."""

    FULL = "is full", "free some space there"
    QUOTA = "has no quota left", "free some space there or raise the quota"
    READ_ONLY = "is read-only", "make it writable"
    FAILING = "fails", "look for its errors in the system's log"


class DiskFailure(ResourceExhausted):
    """A disk of the server is full, over its quota, read-only or failing."""

    def __init__(self, trouble: DiskTrouble, where: str) -> None:
        what, remedy = trouble.value
        super().__init__(f"the server's disk {what} ({where}); {remedy}, then try again")
        self.trouble = trouble


class Unavailable(BraidError):
    """The service cannot answer for a moment; the same call may succeed soon."""


class ModelLoading(Unavailable):
    """The model is registered but not yet serving."""

    retry_after_s = 1.0


class NoNodeUp(Unavailable):
    """No server of a fleet takes calls at this address at the moment."""

    retry_after_s = 1.0


class Draining(Unavailable):
    """The server is shutting down and takes no new requests."""


class StoreUnavailable(Unavailable):
    """The database or the shared files of the store do not answer; models serve on."""

    retry_after_s = 1.0


class DatabaseUnavailable(StoreUnavailable):
    """The store's database does not answer, or cannot do this now."""


class SystemShortage(Unavailable):
    """The server's system has no descriptors, processes or memory left for now."""

    retry_after_s = 1.0

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the server has no {what} left for now; try again, and look at its limits (ulimit, "
            "those of its container) if that lasts"
        )


class WorkerRestarting(Unavailable):
    """The device worker died and is being restarted."""


class WorkerDied(WorkerRestarting):
    """The device worker died while it had the request, maybe of it."""

    def __init__(self, message: str, *, is_of_run: bool = False) -> None:
        super().__init__(message)
        self.is_of_run = is_of_run  # it crashed while it ran this request


class DeadlineExceeded(BraidError):
    """The caller's deadline passed before the result was ready."""


class RunStopped(DeadlineExceeded):
    """A run on a device was ended because no call waited for it any more."""


class RunTooLong(RunStopped):
    """A run on a device was ended because it took many times as long as it should."""


class RequestCancelled(BraidError):
    """The caller went away or cancelled."""


class PreconditionFailed(BraidError):
    """The request is legal but the present state does not allow it."""


class ModelQuarantined(PreconditionFailed):
    """A model version that stopped its device several times is refused for a while."""


class DamagedArtefact(PreconditionFailed):
    """A file that an import wrote is missing or changed; ``why`` names the file."""

    def __init__(self, why: str) -> None:
        super().__init__(f"its artefact is damaged ({why}): register the same file again")


class TakenOver(BraidError):
    """Another server works on this now: what this one wanted to store was refused."""


class NotOffered(BraidError):
    """The protocol has this part; the server's settings do not offer it."""


class Unauthenticated(BraidError):
    """The call needs a token, and none or an unknown one came."""


class PermissionDenied(BraidError):
    """The caller's token does not allow this call."""


class SearchTooLarge(BraidError):
    """The graph is too big for the exact search."""

    def __init__(self, operators: int, limit: int) -> None:
        super().__init__(
            f"block has {operators} operators, the exact search takes at most {limit}; "
            "split the graph into blocks or lower the pruning limits"
        )


class WorkerFault(BraidError):
    """The device worker failed in a way it should not: a bug or broken hardware."""


class DeviceLost(WorkerFault):
    """The device, or this process, is beyond use: the worker must be restarted."""


class ImpossibleLatency(WorkerFault):
    """A measured latency is not a finite number above zero."""

    def __init__(self, latency_us: object) -> None:
        super().__init__(f"a latency of {latency_us!r} us was measured, which cannot be")


class StartupError(BraidError):
    """The server cannot start; the message is one line that says what to change."""
