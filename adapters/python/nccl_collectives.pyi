"""Collectives of a job over numpy arrays and torch tensors, without copies."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Protocol, overload

class Tensor(Protocol):
    """A contiguous array or tensor in host memory or on a CUDA device: of numpy, torch, or another library with DLPack."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

Op = Literal["avg", "sum", "prod", "max", "min"]

class CollectiveError(RuntimeError):
    """A job or a collective has failed."""

class RankFailed(CollectiveError):
    """Another rank has failed."""

    rank: int
    host: str
    reason: str

class Mismatch(CollectiveError):
    """Two ranks called different operations."""

    rank: int
    called: str
    peer: int
    peer_called: str | None

class TimedOut(CollectiveError):
    """An operation has not finished within the group's timeout."""

    operation: str
    limit: float
    late: list[tuple[int, str]]

class Work:
    """An operation under way."""

    def wait(self, block: bool = False) -> None: ...
    def is_done(self) -> bool: ...

class Group:
    """Ranks that call the same operations in the same order."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def backend(self) -> Literal["host", "gpu"]: ...
    def describe(self) -> str: ...
    def set_timeout(self, seconds: float | None) -> None: ...
    def barrier(self) -> None: ...
    def split(self, color: int | None) -> Group | None: ...
    def all_gather_bytes(self, message: bytes) -> list[bytes]: ...
    @overload
    def all_reduce(
        self, tensor: Tensor, op: Op = "sum", *, async_op: Literal[False] = False, stream: int | None = None
    ) -> None: ...
    @overload
    def all_reduce(
        self, tensor: Tensor, op: Op = "sum", *, async_op: Literal[True], stream: int | None = None
    ) -> Work: ...
    @overload
    def all_reduce_list(
        self, tensors: Iterable[Tensor], op: Op = "sum", *, async_op: Literal[False] = False, stream: int | None = None
    ) -> None: ...
    @overload
    def all_reduce_list(
        self, tensors: Iterable[Tensor], op: Op = "sum", *, async_op: Literal[True], stream: int | None = None
    ) -> Work: ...
    @overload
    def broadcast(
        self, tensor: Tensor, root: int = 0, *, async_op: Literal[False] = False, stream: int | None = None
    ) -> None: ...
    @overload
    def broadcast(
        self, tensor: Tensor, root: int = 0, *, async_op: Literal[True], stream: int | None = None
    ) -> Work: ...
    @overload
    def all_gather(
        self, part: Tensor, whole: Tensor, *, async_op: Literal[False] = False, stream: int | None = None
    ) -> None: ...
    @overload
    def all_gather(
        self, part: Tensor, whole: Tensor, *, async_op: Literal[True], stream: int | None = None
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self, whole: Tensor, part: Tensor, op: Op = "sum", *, async_op: Literal[False] = False, stream: int | None = None
    ) -> None: ...
    @overload
    def reduce_scatter(
        self, whole: Tensor, part: Tensor, op: Op = "sum", *, async_op: Literal[True], stream: int | None = None
    ) -> Work: ...

class Job:
    """One rank of a job. As a context manager, it tells the other ranks about an exception that leaves the block."""

    @staticmethod
    def from_environment() -> Job: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    def group(self, backend: Literal["auto", "host", "gpu"] = "auto") -> Group: ...
    def fail(self, reason: str) -> None: ...
    def __enter__(self) -> Job: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> bool: ...

def init() -> Job:
    """Joins the job in which this process was started."""
