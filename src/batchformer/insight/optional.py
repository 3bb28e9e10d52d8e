"""Optional libraries, imported only where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str) -> Iterator[None]:
    """If an import inside the block fails, name the extra that installs the library.

    >>> with extra("report"):
    ...     import no_such_library
    Traceback (most recent call last):
    ModuleNotFoundError: no_such_library is not installed: pip install 'batchformer[report]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "a library").partition(".")[0]
        message = f"{missing} is not installed: pip install 'batchformer[{name}]'"
        raise ModuleNotFoundError(message, name=error.name) from error
