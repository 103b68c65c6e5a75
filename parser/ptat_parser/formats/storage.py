# SPDX-License-Identifier: BSD-2-Clause
"""Sessions in an object store: ``s3://bucket/session``, or any other protocol of fsspec.

Paths in an object store (`upath.UPath`) behave like `Path`. This module handles the differences:
parts of large files are read with few requests, nothing can be renamed, and pyarrow needs the file
system.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from ptat_parser.errors import BadInput, ParseError

if TYPE_CHECKING:  # not imported by a parse, which then starts sooner
    import pyarrow.dataset as ds
    from typing_extensions import Buffer

REQUEST_BYTES = 8 << 20
"""Bytes per request for a large remote file; a request takes about ten milliseconds."""

PASSING_BYTES = 4 << 20
"""Bytes between calls of ``posix_fadvise(POSIX_FADV_DONTNEED)``. Each call includes the ranges of
the last `PASSING_TIMES` calls, because their pages may not have been written back before."""

PASSING_TIMES = 4

PASSING_SLOW_S = 0.1
"""A call that takes longer means that the disk does not keep up."""


def location(name: str | Path) -> Path:
    """The path of a name, in an object store if it has a protocol.

    :raises BadInput: the store is unknown or cannot be reached.
    """
    if not isinstance(name, str) or "://" not in name:
        return Path(name)
    try:
        from upath import UPath
    except ImportError as error:
        raise BadInput(f"{name}: needs fsspec", "pip install 'ptat[s3]'") from error
    try:
        found = UPath(name)
        found.exists()
    except ImportError as error:
        raise BadInput(
            f"{name}: {error}", "pip install 'ptat[s3]' or the package that fsspec names"
        ) from error
    except Exception as error:  # each store raises its own exceptions
        raise BadInput(
            f"{name}: cannot be reached: {error}", "check the store's address and your credentials"
        ) from error
    return Path(found.path) if found.protocol in ("file", "local") else cast(Path, found)


def is_remote(path: Path) -> bool:
    """Whether a path is in an object store."""
    return not isinstance(path, Path)


# Reading ------------------------------------------------------------------------------------------


class Source:
    """A file with random access. Can be pickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = path.stat().st_size
        self._file: int | None = None
        self._held: tuple[int, bytes] | None = None  # start and bytes of the last remote read

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None, "_held": None}

    @property
    def file(self) -> int:
        """The file descriptor; -1 if the file is in an object store."""
        if is_remote(self.path):
            return -1
        if self._file is None:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)
        return self._file

    def readinto(self, start_bytes: int, view: memoryview) -> None:
        """Fill `view` from `start_bytes` on; `ParseError` if the file is too short."""
        file = self.file
        if file < 0:
            return self._fetch(start_bytes, view)
        while view:
            done = os.preadv(file, [view], start_bytes)
            if not done:
                raise shorter(self.path)
            start_bytes += done
            view = view[done:]

    def read(self, start_bytes: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` from `start_bytes` on, fewer at the end."""
        data = bytearray(max(min(size_bytes, self.size_bytes - start_bytes), 0))
        self.readinto(start_bytes, memoryview(data))
        return bytes(data)

    def _fetch(self, start_bytes: int, view: memoryview) -> None:
        while view:
            number, at = divmod(start_bytes, REQUEST_BYTES)
            if self._held is None or self._held[0] != number:
                store: Any = self.path
                first = number * REQUEST_BYTES
                end = min(first + REQUEST_BYTES, self.size_bytes)
                self._held = number, store.fs.cat_file(store.path, start=first, end=end)
            part = self._held[1][at : at + len(view)]
            if not part:
                raise shorter(self.path)
            view[: len(part)] = part
            view = view[len(part) :]
            start_bytes += len(part)


def shorter(path: Path) -> ParseError:
    """The error of a file that became shorter while being read."""
    return ParseError(f"{path}: became shorter while being read")


def read_array(
    path: Path, dtype: npt.DTypeLike, start_bytes: int = 0, size_bytes: int | None = None
) -> npt.NDArray[Any]:
    """All of a file, or `size_bytes` from `start_bytes` on; `ParseError` if it is too short."""
    if is_remote(path):
        store: Any = path
        part = {} if size_bytes is None else {"start": start_bytes, "end": start_bytes + size_bytes}
        found = np.frombuffer(bytearray(store.fs.cat_file(store.path, **part)), dtype)
    else:
        count = -1 if size_bytes is None else size_bytes // np.dtype(dtype).itemsize
        found = np.fromfile(path, dtype, count, offset=start_bytes)
    if size_bytes is not None and found.nbytes < size_bytes:
        raise shorter(path)
    return found


def parts(directory: Path) -> list[Path]:
    """The Parquet files of a directory, in order."""
    if is_remote(directory):
        cast(Any, directory).fs.invalidate_cache()  # other processes write to it
    return sorted(directory.glob("part-*.parquet"))


def dataset(paths: Sequence[Path]) -> ds.Dataset:
    """Parquet files as one dataset."""
    import pyarrow.dataset as ds

    if paths and is_remote(paths[0]):
        stored: list[Any] = list(paths)
        return ds.dataset([path.path for path in stored], filesystem=stored[0].fs)
    return ds.dataset(list(paths))


# Writing ------------------------------------------------------------------------------------------


@contextmanager
def opened(path: Path) -> Iterator[Path | IO[bytes]]:
    """A path or file object that pyarrow can read."""
    if is_remote(path):
        with path.open("rb") as file:
            yield file
    else:
        yield path


def open_passing(path: Path) -> IO[bytes]:
    """Open a file for sequential writing that will not be read again soon.

    Written pages of a local file are dropped from the page cache, which is better used for the
    capture; allocating new page-cache pages also costs more than reusing them.
    """
    if is_remote(path) or not hasattr(os, "posix_fadvise"):
        return path.open("wb")
    return io.BufferedWriter(_Passing(path, "wb"))


class _Passing(io.FileIO):
    """A file whose written pages are dropped from the page cache."""

    _size_bytes = 0
    _advised_bytes: int | None = 0  # end of the last call's range; None: no more calls

    def write(self, data: Buffer, /) -> int:
        written = super().write(data)
        self._size_bytes += written
        if (
            self._advised_bytes is not None
            and self._size_bytes - self._advised_bytes >= PASSING_BYTES
        ):
            self._advise(self._advised_bytes)
        return written

    def close(self) -> None:
        if not self.closed and self._advised_bytes is not None:
            self._advise(self._advised_bytes)
        super().close()

    def _advise(self, advised_bytes: int) -> None:
        """Start write-back of dirty pages, and drop clean ones."""
        first = max(advised_bytes - PASSING_TIMES * PASSING_BYTES, 0)
        began_s = time.monotonic()
        with suppress(OSError):  # advice only
            os.posix_fadvise(self.fileno(), first, self._size_bytes - first, os.POSIX_FADV_DONTNEED)
        slow = time.monotonic() - began_s > PASSING_SLOW_S
        self._advised_bytes = None if slow else self._size_bytes


@contextmanager
def replacing(results: Path, on_wait: Callable[[], None]) -> Iterator[Path]:
    """Yield an empty directory for new results, which replaces the old results at the end.

    Another process that writes the same results meanwhile calls `on_wait` and waits. After an error
    the old results stay.

    In an object store the new results are written in place, without a lock. ``summary.json`` is
    removed first and written last, so it marks complete results.
    """
    if is_remote(results):
        (results / "summary.json").unlink(missing_ok=True)
        discard(results)
        try:
            yield results
        except BaseException:
            discard(results)
            raise
        return
    unfinished = results.with_name(results.name + ".new")
    with _made_and_locked(unfinished, on_wait):
        try:
            yield unfinished
        except BaseException:
            discard(unfinished)
            raise
        if results.exists():
            shutil.rmtree(results)
        unfinished.rename(results)


@contextmanager
def _made_and_locked(directory: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Create or empty a directory under a lock, which the kernel releases if the holder dies."""
    with ExitStack() as stack:
        while True:
            directory.mkdir(exist_ok=True)
            try:
                opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, opened)
                with suppress(OSError):  # a file system without locks
                    try:
                        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        on_wait()
                        fcntl.flock(opened, fcntl.LOCK_EX)
                if directory.stat().st_ino == os.fstat(opened).st_ino:
                    break
            except FileNotFoundError:
                pass
            # The previous holder has renamed or removed the directory.
        for left in directory.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()
        yield


def discard(directory: Path) -> None:
    """Remove a directory tree, if it exists."""
    if not is_remote(directory):
        shutil.rmtree(directory, ignore_errors=True)
    elif directory.exists():
        store: Any = directory
        store.fs.rm(store.path, recursive=True)
