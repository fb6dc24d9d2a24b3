"""Records on disk: the only copy. A run, `merge`, `report` and `compare` read the same."""

import io
import json
import tempfile
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO, Self

from jaxscore.io.json_output import LazySequence, json_line
from jaxscore.shell.system import Record

TOGETHER = 1024  # records that are read at a time
IN_MEMORY = 1 << 20  # bytes of temporary records before they go to disk


class Records(LazySequence[Record]):
    """Records in order, as JSON has them. Memory: 16 bytes a record.

    A record may have an extra: what the page displays and no file has.

    Attributes:
        tee: a file that gets each line as it is added; None for none.
    """

    def __init__(self, file: BinaryIO, extras: BinaryIO) -> None:
        """Nothing is written yet.

        Args:
            file, extras: empty, open for writing and reading as long as records are read.
        """
        self.tee: BinaryIO | None = None
        self._files = file, extras
        self._change: Callable[[Record], Record] = _unchanged
        self._ends = array("q", [0]), array("q", [0])
        self._at_end = True
        self._lock = threading.Lock()  # for a file's position; all copies share it

    @classmethod
    def temporary(cls) -> Self:
        """Empty records in temporary files, which are closed with the last reference to them.

        Small ones are in memory alone: a process may keep more reports than it may open files.
        """
        files: Any = [tempfile.SpooledTemporaryFile(IN_MEMORY) for _ in range(2)]  # noqa: SIM115
        out = cls(*files)
        for ends, file in zip(out._ends, files, strict=True):  # which all copies share
            weakref.finalize(ends, file.close)
        return out

    def append(self, record: Mapping[str, Any], extra: Any = None) -> None:
        """Add a record; its arrays may be NumPy arrays."""
        line = json_line(record)
        if self.tee is not None:
            self.tee.write(line)
        self.append_line(line, b"" if extra is None else json_line(extra))

    def append_line(self, line: bytes, extra: bytes = b"") -> None:
        """Add a record from its line of JSONL, as it is."""
        with self._lock:
            for file, ends, text in zip(self._files, self._ends, (line, extra), strict=True):
                if not self._at_end:
                    file.seek(0, io.SEEK_END)
                file.write(text)
                ends.append(ends[-1] + len(text))
            self._at_end = True

    def extend(self, records: Iterable[Record]) -> None:
        """Add records."""
        for record in records:
            self.append(record)

    def changed_by(self, change: Callable[[Record], Record]) -> "Records":
        """The same records, each changed as it is read."""
        out, before = object.__new__(type(self)), self._change
        out.__dict__.update(self.__dict__)
        out._change = lambda record: change(before(record))
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, such as those of pickle, get their own temporary files."""
        return _restored, (list(self.lines()), [self._read(1, k) for k in range(len(self))])

    def __len__(self) -> int:
        return len(self._ends[0]) - 1

    def element(self, index: int) -> Record:
        """See `LazySequence.element`."""
        return self._change(json.loads(self._read(0, index)))

    def __iter__(self) -> Iterator[Record]:
        return (self._change(json.loads(line)) for line in self._lines())

    def lines(self) -> Iterator[bytes]:
        """Each record as its line of JSONL; one that was added as a line is as it was."""
        return self._lines() if self._change is _unchanged else map(json_line, self)

    def _lines(self) -> Iterator[bytes]:
        for start in range(0, len(self), TOGETHER):
            ends = self._ends[0][start : start + TOGETHER + 1]
            text = self._bytes(0, ends[0], ends[-1])
            yield from (text[a - ends[0] : b - ends[0]] for a, b in pairwise(ends))

    def extra(self, index: int) -> Any:
        """The extra of a record, or None."""
        text = self._read(1, index)
        return json.loads(text) if text else None

    @property
    def has_extras(self) -> bool:
        """True if any record has an extra; those that are read from a file have none."""
        return self._ends[1][-1] > 0

    def _read(self, which: int, index: int) -> bytes:
        index = range(len(self))[index]
        return self._bytes(which, self._ends[which][index], self._ends[which][index + 1])

    def _bytes(self, which: int, start: int, end: int) -> bytes:
        with self._lock:
            file, self._at_end = self._files[which], False
            file.flush()
            file.seek(start)
            return file.read(end - start)


def _restored(lines: Sequence[bytes], extras: Sequence[bytes]) -> Records:
    out = Records.temporary()
    for line, extra in zip(lines, extras, strict=True):
        out.append_line(line, extra)
    return out


def _unchanged(record: Record) -> Record:
    return record
