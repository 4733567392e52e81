"""Every exception Harena raises. The guest's failure is a value (`Verdict`); these are the caller's or the platform's.

HarenaError
├── SpecError                a bad argument: refused before anything changed                  (also ValueError)
├── IsolationUnavailable     this host cannot enforce what was asked for; names the fix
├── BackendUnavailable       an unknown backend, or one whose extra is not installed
├── Unsupported              the backend of this box does not have that verb
├── BoxError                 the platform failed; `retry` says whether trying again is safe
│   ├── BoxLost              the box died or talked nonsense in the middle of an operation
│   ├── BoxClosed            the box was closed, or its idle or lifetime clock ran out
│   ├── WrongProcess         the box belongs to the process that this one was forked from
│   ├── RequirementsFailed   pip could not install Spec.requirements; says why
│   ├── StartTimeout         the start clock ran out before the box was ready            (also TimeoutError)
│   ├── QueueTimeout         the queue clock ran out before the pool could admit         (also TimeoutError)
│   ├── BudgetExceeded       the budget of the owner is used up; nothing was started
│   └── JournalError         the journal is full or cannot be written, so nothing more runs in its box
├── JournalBroken            a journal was changed, or is not one
├── WireError                bytes from a box that the closed schema refuses
└── BoxFileError             a file operation the box refused                                 (also OSError)
    ├── BoxFileNotFound                                                              (also FileNotFoundError)
    ├── BoxFileExists        something else is there already                           (also FileExistsError)
    ├── BoxFileForbidden     the guest itself may not do it                            (also PermissionError)
    ├── BoxFileIsFolder      a folder where a file is needed                         (also IsADirectoryError)
    ├── BoxFileNotFolder     a file where a folder is needed                        (also NotADirectoryError)
    └── BoxFileTooLarge      more bytes than the cap allows: raise `max_bytes` to read it
"""

from __future__ import annotations

import enum
import errno


class Retry(enum.Enum):
    SAFE = "safe"
    """Nothing was started; the same call may be made again."""
    UNKNOWN = "unknown"
    """The guest may have run; retry only what is idempotent."""
    NEVER = "never"
    """The same call will fail in the same way."""


class HarenaError(Exception):
    """Base of everything Harena raises on purpose."""


class SpecError(HarenaError, ValueError):
    """An argument cannot be used. Raised before anything changed."""


class IsolationUnavailable(HarenaError):
    """The host cannot enforce what was asked for. Harena never starts a weaker box instead."""

    def __init__(self, missing: str, *, fix: str = "run `harena doctor` for what this host can enforce") -> None:
        super().__init__(f"{missing}: {fix}")
        self.missing = missing
        self.fix = fix


class BackendUnavailable(HarenaError):
    """The backend's name is unknown, or the extra that carries it is not installed."""


class Unsupported(HarenaError):
    """The box's backend cannot do that at all; another one can. See `Capabilities`."""


class BoxError(HarenaError):
    """The platform failed, not the guest."""

    def __init__(self, message: str, *, retry: Retry = Retry.UNKNOWN) -> None:
        super().__init__(message)
        self.retry = retry


class BoxLost(BoxError):
    """The box ended or broke its protocol during an operation."""


class BoxClosed(BoxError):
    """The box is closed; make or lease another one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=Retry.NEVER)


class WrongProcess(BoxError):
    """A forked child used what belongs to its parent. Make boxes and pools in the process that uses them."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} belongs to another process, which forked this one: make one here", retry=Retry.NEVER)


class RequirementsFailed(BoxError):
    """pip could not install the requirements of a box: there are none of that name, or they cannot be built."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=Retry.SAFE)


class StartTimeout(BoxError, TimeoutError):
    """`Clocks.start_s` ran out; nothing of the guest had run."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=Retry.SAFE)


class QueueTimeout(BoxError, TimeoutError):
    """`Clocks.queue_s` ran out; raise it, or the pool's `max_live`."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=Retry.SAFE)


class BudgetExceeded(BoxError):
    """The owner has used what its budget allows; ask the operator, or wait for the next period."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry=Retry.NEVER)


class JournalError(BoxError):
    """The journal of a box cannot be written. `Retry.NEVER`: what was asked for has not run, and will not.
    `Retry.SAFE`: it has not run, and may when the disk has space again. `Retry.UNKNOWN`: it has run, and its result is
    not recorded."""


class JournalBroken(HarenaError):
    """A line of a journal is not what was written. `harena journal verify` names the first one."""


class WireError(HarenaError):
    """A box sent bytes that are not a message of ours. The box is not used again."""


class BoxFileError(HarenaError, OSError):
    """The box answered a file operation with an error."""


class BoxFileNotFound(BoxFileError, FileNotFoundError):
    """No such file or folder in the box."""


class BoxFileExists(BoxFileError, FileExistsError):
    """Something else has that name in the box."""


class BoxFileForbidden(BoxFileError, PermissionError):
    """The box's user has no right to it."""


class BoxFileIsFolder(BoxFileError, IsADirectoryError):
    """There is a folder where the operation needs a file."""


class BoxFileNotFolder(BoxFileError, NotADirectoryError):
    """There is a file where the operation needs a folder."""


class BoxFileTooLarge(BoxFileError):
    """The file, folder or listing is larger than the cap of the call."""


_FILE_ERRORS: dict[int, type[BoxFileError]] = {
    errno.ENOENT: BoxFileNotFound,
    errno.EEXIST: BoxFileExists,
    errno.EACCES: BoxFileForbidden,
    errno.EPERM: BoxFileForbidden,
    errno.EROFS: BoxFileForbidden,
    errno.EISDIR: BoxFileIsFolder,
    errno.ENOTDIR: BoxFileNotFolder,
    errno.EFBIG: BoxFileTooLarge,
}


def file_error(number: int, path: str, detail: str = "") -> BoxFileError:
    kind = _FILE_ERRORS.get(number, BoxFileError)
    return kind(number, detail or errno.errorcode.get(number, f"errno {number}"), path)
