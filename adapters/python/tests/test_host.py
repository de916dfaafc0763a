"""Collectives of two processes over arrays of numpy in host memory.

Each test runs its function in two processes, which are the ranks of a job.
"""

import ctypes
import gc
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import numpy as np

import nccl_collectives as nc

RANKS = 2
SECONDS = 120


def raises(kind, call, *words):
    """The exception that a call raises, whose text has all words."""
    try:
        call()
    except kind as error:
        for word in words:
            assert word in str(error), f"'{word}' is not in: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


class Exported:
    """An array of which the capsule is changed before it is used: without a version, and with another type code."""

    def __init__(self, array, code=None):
        self.array, self.code = array, code

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream=None):  # no max_version: the interface of before DLPack 1.0
        capsule = self.array.__dlpack__()
        if self.code is not None:
            pointer = ctypes.pythonapi.PyCapsule_GetPointer
            pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            # DLTensor: a pointer, the device's two ints, the number of dimensions, then the type code.
            ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 8 + 8 + 4).value = self.code
        return capsule


class Copying:
    """An array of a library that exports a copy of memory that it cannot share."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, max_version=None):
        return self.array.__dlpack__(max_version=max_version, copy=True)


def all_reduce(job, group):
    expected = {"sum": [3, 7], "prod": [2, 12], "max": [2, 4], "min": [1, 3], "avg": [1.5, 3.5]}
    floats = [np.float16, np.float32, np.float64]
    integers = [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64]
    for kind in floats + integers:
        for op, result in expected.items():
            array = np.array([[1, 3]] if job.rank == 0 else [[2, 4]], dtype=kind)
            address = array.ctypes.data
            assert group.all_reduce(array, op) is None
            assert array.ctypes.data == address
            # Averages of integers truncate.
            np.testing.assert_array_equal(array, np.array([result]).astype(kind), f"{kind.__name__} {op}")
    array = np.full(100_000, job.rank + 1.0)
    group.all_reduce(array)
    assert (array == 3).all()
    for shape in [(), (0,), (2, 0)]:
        array = np.full(shape, job.rank, dtype=np.float32)
        group.all_reduce(array, "sum")
        assert array.shape == shape and (array == 1).all()


class Negative:
    """A view of torch whose elements are the negatives of those in memory."""

    def __init__(self, array):
        self.__dlpack_device__, self.__dlpack__ = array.__dlpack_device__, array.__dlpack__

    def is_neg(self):
        return True


def dimensions_of_one_element(job, group):
    """Their strides have no meaning: numpy and torch call such arrays contiguous, and make no copy of them."""
    base = np.full((6, 4), job.rank + 1.0)
    for array in [base[::2][:1], base[:1].T[:1, :1], np.full((4, 1), job.rank + 1.0).T, base[:1].T.reshape(4, 1)]:
        assert array.flags.c_contiguous
        group.all_reduce(array, "prod")
        assert (array == 2).all(), array
        array[...] = job.rank + 1


def bfloat16_and_unversioned_capsules(job, group):
    array = np.array([job.rank, 10.0])
    group.all_reduce(Exported(array), "sum")
    np.testing.assert_array_equal(array, [1, 20])
    # The upper halves of float32.
    values = np.array([1.5, -2.0] if job.rank == 0 else [0.25, -8.0], dtype=np.float32)
    halves = (values.view(np.uint32) >> 16).astype(np.uint16)
    group.all_reduce(Exported(halves, code=4), "sum")
    result = (halves.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(result, np.array([1.75, -10.0], dtype=np.float32))


def other_collectives(job, group):
    assert (group.rank, group.size, group.backend) == (job.rank, RANKS, "host")
    assert (job.size, job.local_rank, job.local_size) == (RANKS, job.rank, RANKS)
    array = np.arange(5) * (job.rank + 1)
    group.broadcast(array, root=1)
    np.testing.assert_array_equal(array, np.arange(5) * 2)

    part, whole = np.array([[job.rank, 7]]), np.zeros((2, 2), dtype=np.int64)
    part.flags.writeable = False
    group.all_gather(part, whole)
    np.testing.assert_array_equal(whole, [[0, 7], [1, 7]])

    whole, part = np.array([1.0, 2.0, 3.0, 4.0]) * (job.rank + 1), np.zeros(2)
    group.reduce_scatter(whole, part, "sum")
    np.testing.assert_array_equal(part, [[3, 6], [9, 12]][job.rank])

    many = [np.full(size, job.rank + size, dtype=np.float32) for size in (1, 1000, 3)]
    group.all_reduce_list((array for array in many), "avg")
    for size, array in zip((1, 1000, 3), many):
        assert (array == size + 0.5).all()
    group.all_reduce_list([])

    assert group.all_gather_bytes(b"ab" * job.rank) == [b"", b"ab"]
    group.barrier()
    alone = group.split(job.rank)
    assert (alone.rank, alone.size) == (0, 1)
    array = np.array([5.0])
    alone.all_reduce(array, "sum")
    assert array[0] == 5
    none = group.split(None if job.rank else 0)
    assert (none is None) == (job.rank == 1)


def operations_under_way(job, group):
    arrays = [np.full(1000 * count, job.rank + count, dtype=np.float32) for count in range(1, 9)]
    works = [group.all_reduce(array, "sum", async_op=True) for array in arrays]
    for work in reversed(works):
        work.wait()
        work.wait()
        assert work.is_done()
    for count, array in enumerate(arrays, 1):
        assert (array == 2 * count + 1).all()

    # Two threads wait for one operation: both return after its end.
    array = np.full(1 << 20, job.rank, dtype=np.float64)
    work = group.all_reduce(array, "sum", async_op=True)
    seen = []
    threads = [threading.Thread(target=lambda: (work.wait(), seen.append((array == 1).all()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True, True]

    # Neither the work nor the array is kept by the program.
    array = np.full(1 << 20, job.rank, dtype=np.float64)
    group.all_reduce(array, "sum", async_op=True)
    lost = np.full(1 << 20, 1.0)
    group.all_reduce(lost, "sum", async_op=True)
    del lost
    gc.collect()
    group.barrier()
    assert (array == 1).all()


def refusals(job, group):
    array = np.zeros((4, 6), dtype=np.float32)
    locked = np.zeros(3)
    locked.flags.writeable = False
    both = np.zeros(8)
    unaligned = np.frombuffer(bytearray(17), dtype=np.uint8)[1:].view(np.float64)
    calls = [
        (ValueError, lambda: group.all_reduce(array[:, ::2]), "not contiguous", "[4, 3]", "ascontiguousarray"),
        (ValueError, lambda: group.all_reduce(array.T), "not contiguous"),
        (TypeError, lambda: group.all_reduce(array.astype(np.complex64)), "complex64", "float32"),
        (TypeError, lambda: group.all_reduce(array.astype(np.int16)), "elements of int16 cannot"),
        (TypeError, lambda: group.all_reduce(array != 0), "elements of bool cannot"),
        (TypeError, lambda: group.all_reduce([1.0, 2.0]), "__dlpack__", "not list"),
        (TypeError, lambda: group.all_reduce(None), "not NoneType"),
        (ValueError, lambda: group.all_reduce(unaligned), "aligned"),
        (ValueError, lambda: group.all_reduce(Negative(np.zeros(3)), "max"), "negative view", "resolve_neg"),
        (ValueError, lambda: group.all_reduce(array, "mean"), "'mean'", "avg"),
        (ValueError, lambda: group.all_gather(both[:2], both[1:5]), "overlap"),
        (ValueError, lambda: group.all_reduce_list([both, array]), "same type"),
        (ValueError, lambda: group.all_gather(np.zeros(2), np.zeros(5)), "all_gather"),
        (ValueError, lambda: group.broadcast(both, root=2), "broadcast"),
        (ValueError, lambda: group.broadcast(both, root=-1), "broadcast", "not -1"),
        (TypeError, lambda: group.all_reduce_list(7), "int"),
        ((ValueError, BufferError), lambda: group.all_reduce(locked), "read"),
        (ValueError, lambda: job.group("gpus"), "gpus", "auto"),
        (ValueError, lambda: group.set_timeout(-1.0), "timeout"),
    ]
    for kind, call, *words in calls:
        raises(kind, call, *words)
    # Nothing was sent.
    array = np.array([job.rank])
    group.all_reduce(array, "max")
    assert array[0] == 1


def results_in_copies_are_refused(job, group):
    array, words = Copying(np.full(2, job.rank + 1.0)), ("exports a copy", "lost", "shares its memory")
    raises(ValueError, lambda: group.all_reduce(array, "sum"), *words)
    raises(ValueError, lambda: group.broadcast(array, root=0), *words)
    raises(ValueError, lambda: group.all_gather(np.zeros(1), array), *words)
    raises(ValueError, lambda: group.reduce_scatter(np.zeros(4), array), *words)
    # A copy of what is only read is as good.
    whole = np.zeros(4)
    group.all_gather(array, whole)
    np.testing.assert_array_equal(whole, [1, 1, 2, 2])


def a_failed_rank_and_its_reason(job, group):
    if job.rank == 1:
        try:
            with job:
                raise ArithmeticError("the loss is NaN")
        except ArithmeticError:
            # The others are told while this process lives.
            wait_for_note()
        return
    error = raises(nc.RankFailed, lambda: group.all_reduce(np.zeros(3)), "rank 1", "ArithmeticError: the loss is NaN")
    assert error.rank == 1 and "the loss is NaN" in error.reason and error.host
    assert isinstance(error, nc.CollectiveError) and isinstance(error, RuntimeError)
    # The group has stopped.
    raises(nc.RankFailed, group.barrier, "the loss is NaN")
    pathlib.Path(os.environ["NOTE"]).touch()


def different_calls(job, group):
    if job.rank == 0:
        error = raises(nc.Mismatch, lambda: group.all_reduce(np.zeros(3)), "all_reduce", "broadcast")
    else:
        error = raises(nc.Mismatch, lambda: group.broadcast(np.zeros(3)), "all_reduce", "broadcast")
    assert {error.rank, error.peer} == {0, 1} and error.called


def a_list_that_is_empty_on_one_rank(job, group):
    tensors = [np.zeros(3), np.zeros(2)] if job.rank else []
    raises(nc.Mismatch, lambda: group.all_reduce_list(tensors), "all_reduce_list of 0 buffers")


def a_timeout(job, group):
    group.set_timeout(0.5)
    if job.rank == 0:
        error = raises(nc.TimedOut, lambda: group.all_reduce(np.zeros(3)), "all_reduce")
        assert error.limit == 0.5 and "all_reduce" in error.operation
        assert [rank for rank, _ in error.late] == [1]
        pathlib.Path(os.environ["NOTE"]).touch()
    else:
        wait_for_note()


def other_threads_run_meanwhile(job, group):
    if job.rank == 1:
        wait_for_note()
        group.barrier()
        return

    def note():
        entered.wait()
        # The call of the main thread begins meanwhile; it ends only after the note.
        time.sleep(0.3)
        pathlib.Path(os.environ["NOTE"]).touch()

    entered = threading.Event()
    threading.Thread(target=note).start()
    entered.set()
    group.barrier()


def interrupted_calls(job, group):
    if job.rank == 1:
        # The other rank's calls would wait as long.
        wait_for_note()
        return

    def interrupt():
        entered.wait()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for call in (group.barrier, lambda: group.all_gather_bytes(b"0"), lambda: group.split(0), lambda: job.group("host")):
        entered = threading.Event()
        thread = threading.Thread(target=interrupt)
        thread.start()
        raises(KeyboardInterrupt, lambda: (entered.set(), call()))
        thread.join()
    pathlib.Path(os.environ["NOTE"]).touch()


def a_wait_in_a_signal_handler(job, group):
    if job.rank == 1:
        wait_for_note()
        group.all_reduce(np.zeros(3))
        return
    work = group.all_reduce(np.zeros(3), async_op=True)

    def handler(*_):
        pathlib.Path(os.environ["NOTE"]).touch()
        try:
            work.wait()
        except RuntimeError as error:
            refused.append(str(error))

    refused = []
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    work.wait()
    # None if the signal came before the wait.
    assert all("this thread waits for the operation" in text for text in refused)


def forked_processes(job, group):
    work = group.all_reduce(np.full(1000, 1.0), "sum", async_op=True)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            calls = (group.barrier, lambda: group.all_reduce(np.zeros(3)), lambda: job.rank, job.group, work.wait)
            for call in calls:
                raises(nc.CollectiveError, call, f"process {os.getppid()}", f"process {os.getpid()} was forked", "spawn")
            # What the parent uses is left alone.
            globals().pop("job")
            del job, group, work, call, calls
            gc.collect()
            os.write(writer, b"refused")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as lines:
        assert lines.read() == b"refused"
    os.waitpid(child, 0)
    work.wait()
    group.barrier()
    assert job.group("host").size == RANKS


def wait_for_note():
    end = time.monotonic() + SECONDS
    while not os.path.exists(os.environ["NOTE"]):
        assert time.monotonic() < end, "the other rank has left no note"
        time.sleep(0.01)


FUNCTIONS = [
    all_reduce,
    dimensions_of_one_element,
    bfloat16_and_unversioned_capsules,
    other_collectives,
    operations_under_way,
    refusals,
    results_in_copies_are_refused,
    a_failed_rank_and_its_reason,
    different_calls,
    a_list_that_is_empty_on_one_rank,
    a_timeout,
    other_threads_run_meanwhile,
    interrupted_calls,
    a_wait_in_a_signal_handler,
    forked_processes,
]


def run(name):
    """Runs a function in processes of their own, and shows what they print if one fails."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        job = {"NCCL_BENCH_SIZE": str(RANKS), "NCCL_BENCH_ADDR": address, "NOTE": f"{folder}/note"}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, name],
                env={**os.environ, **job, "NCCL_BENCH_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(RANKS)
        ]
        outputs = []
        for process in processes:
            try:
                outputs.append(process.communicate(timeout=SECONDS)[0])
            except subprocess.TimeoutExpired:
                process.kill()
                outputs.append(process.communicate()[0] + f"\nnot finished within {SECONDS} s")
        codes = [process.returncode for process in processes]
        assert codes == [0] * RANKS, f"exit codes {codes}\n" + "\n".join(outputs)


class Host(unittest.TestCase):
    """A test for each function."""


def test_of(function):
    return lambda self: run(function.__name__)


for function in FUNCTIONS:
    setattr(Host, f"test_{function.__name__}", test_of(function))


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] in {function.__name__ for function in FUNCTIONS}:
        job = nc.init()
        globals()[sys.argv[1]](job, job.group("host"))
    else:
        unittest.main()
