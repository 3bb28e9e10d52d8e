"""The command line. It loads torch only for commands that compute."""

from __future__ import annotations

import difflib
import errno
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from batchformer import __version__
from batchformer.cli import questions, results, training
from batchformer.cli.arguments import UserError
from batchformer.lab.engine.distributed import torchrun

HELP = f"""batchformer {__version__}: BatchFormer, and the experiments that say whether it helps.

Usage: batchformer COMMAND [...]

  demo                     baseline against +BatchFormer on embedded digits, under a minute
  list [WORD...]           every recipe, with its row of the paper; with words, such as `list
                           cifar ride`, the recipes that have them all
  train RECIPE             one arm, one seed
  compare RECIPE           every arm with every seed, paired, with intervals and a verdict
  sweep [SWEEP]            one setting at several levels, as the paper's ablations; or their list
  evaluate RUN             score a trained run again
  report RUN...            one self-contained page of finished runs
  record RUN...            small JSON records of finished runs; --make PAGE makes the tables of a
                           page from them
  show FIGURE RUN...       one figure, or its numbers; without a name, which figures there are
  export RUN --to FILE     the plain network's weights, without BatchFormer
  check RECIPE             is BatchFormer acting in this recipe's training?
  data                     which data sets are here, and where they are looked for; `data pairs`
                           and `data long-tail` write lists of pairs and of a long tail
  bench                    how fast everything is here, measured side by side

`batchformer COMMAND --help` shows the options of a command. With a recipe, such as `batchformer
compare demo --help`, it shows those that have an effect on the recipe; `--help-all` shows all.
"""

COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "demo": training.demo,
    "list": questions.list_recipes,
    "train": training.train,
    "compare": training.compare,
    "sweep": training.sweep,
    "evaluate": results.evaluate,
    "report": results.report,
    "record": results.record,
    "show": results.show,
    "export": results.export,
    "check": questions.check,
    "data": questions.data,
    "bench": questions.bench,
}

_IN_THE_WAY = "; a file lies where a folder is needed"
#: What to do about errors of the system.
HINTS = {
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EROFS: "; name another place by --runs, --to or --page",
}

TRAINING = ("demo", "train", "compare", "sweep")  # commands that several ranks run together


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; exits with 1 for an error a person can mend, 2 for a wrong call."""
    _prepare_streams()
    name, *rest = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if torchrun.is_follower() and name not in TRAINING:
        return  # one rank answers
    if torchrun.several_ranks() and name in TRAINING:
        torchrun.run_as_rank(lambda: _run(name, rest))
    _run(name, rest)


def _prepare_streams() -> None:
    """Open closed streams, as a service has them, and escape characters that cannot be encoded."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            with suppress(OSError):  # fails if the stream's file was replaced by a pipe
                stream.reconfigure(errors="backslashreplace")


def _run(name: str, arguments: list[str]) -> None:
    from batchformer.lab.engine.interrupt import Interrupted

    try:
        with _plain_warnings():
            _dispatch(name, arguments)
        sys.stdout.flush()
    except Interrupted as stop:
        _fail(str(stop), stop.exit_code)
    except KeyboardInterrupt:  # outside of training, which saves first
        if os.environ.get("BATCHFORMER_TRACEBACK"):
            raise
        _fail("Stopped at once, with what was saved before.", 128 + signal.SIGINT)
    except ModuleNotFoundError as error:
        _fail(f"This needs {error.name}: pip install 'batchformer[lab,report]'", 1)
    except BrokenPipeError:
        # The reader has closed the pipe: discard the rest, also what Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if os.environ.get("BATCHFORMER_TRACEBACK") or (words := _in_words(error)) is None:
            raise
        _fail(words, 1)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print warnings of this package as one line, without the place in the code."""
    before = warnings.formatwarning

    def words(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if Path(filename).is_relative_to(Path(__file__).parents[1]):
            return f"Warning: {message}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = words
    try:
        yield
    finally:
        warnings.formatwarning = before


def _in_words(error: Exception) -> str | None:
    """What to tell the user; None for a bug of this package, which keeps its traceback."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        place = error.filename or "a file of the run"
        return (
            f"{error.strerror}: {place} could not be written. Everything saved before is intact. "
            "Make room, then repeat the command: a training continues from its last checkpoint."
        )
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return f"{error.filename}: {error.strerror}{HINTS.get(error.errno, '')}."
    if isinstance(error, (UserError, OSError, ValueError, ImportError)):
        return str(error)
    from torch import OutOfMemoryError  # late: few errors come this far

    from batchformer.lab.engine.log import DivergedError

    if isinstance(error, OutOfMemoryError):
        return (
            f"{str(error).strip()} What was saved before is intact. A smaller --train.batch-size "
            "or --train.precision bf16 needs less memory; so do fewer runs --together."
        )
    return str(error) if isinstance(error, DivergedError) else None


def _dispatch(name: str, arguments: list[str]) -> None:
    if name in ("-h", "--help", "help", "--version"):
        print(__version__ if name == "--version" else HELP)
    elif name in COMMANDS:
        COMMANDS[name](arguments)
    else:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"Did you mean `batchformer {near[0]}`?" if near else "See `batchformer --help`."
        _fail(f"There is no command {name!r}. {hint}", 2)


def _fail(message: str, code: int) -> None:
    torchrun.print_once(f"batchformer: {message}")
    raise SystemExit(code)
