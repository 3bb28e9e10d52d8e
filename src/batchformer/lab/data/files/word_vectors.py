"""Word vectors from text files, and vectors of names made of several words."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Literal

import torch
from torch import Tensor

from batchformer.lab.data.files.file_lists import shorten
from batchformer.nn.randomness import generator

_PACKED = (b"PK", b"\x1f\x8b", b"BZh", b"\xfd7zXZ")
_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, eq=False)
class WordVectors:
    """W words and their vectors."""

    words: tuple[str, ...]
    matrix: Tensor  # (W, D) float32
    incomplete: tuple[str, ...] = ()  # words that only some files have; they get no vector

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @property
    def dim(self) -> int:
        """D, the numbers in a vector."""
        return self.matrix.shape[1]

    def __contains__(self, word: str) -> bool:
        return word in self._rows

    def __getitem__(self, word: str) -> Tensor:
        return self.matrix[self._rows[word]]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Vectors of n names, and how they were found."""

    matrix: Tensor  # (n, D) float32
    composed: Mapping[str, tuple[str, ...]]  # the words whose mean a name got
    missing: Mapping[str, tuple[str, ...]]  # parts of a name that its mean leaves out
    random: tuple[str, ...]  # names without a vector for any part, whose vectors were drawn


def read_vectors(files: Sequence[Path], words: Collection[str]) -> WordVectors:
    """Vectors of some words, from text files in the format of GloVe, word2vec and fastText.

    A line is a word and its numbers; a first line may give the numbers of words and dimensions.
    Files are read line by line, and only wanted words are kept, as spelt; `words_of` gives all that
    names may need. A word whose numbers are all 0 counts as absent. The vectors of several files
    are concatenated, for words that all files have.
    """
    if not files:
        raise ValueError("no file of word vectors is named: name one")
    found = [_read(Path(file).expanduser(), words) for file in files]
    known = tuple(sorted(set.intersection(*({*vectors} for _, vectors in found))))
    some_have = {word for _, vectors in found for word in vectors}
    rows = [[number for _, vectors in found for number in vectors[word]] for word in known]
    matrix = torch.tensor(rows, dtype=torch.float32).reshape(-1, sum(dim for dim, _ in found))
    return WordVectors(known, matrix, tuple(sorted(some_have - {*known})))


def split_name(name: str) -> tuple[str, ...]:
    """Words of a name: cut at '.', '-', '_' and spaces, and between a small letter and a capital.

    >>> split_name("Shoes.Sneakers.and.Athletic.Shoes"), split_name("FauxFur mid-calf")
    (('Shoes', 'Sneakers', 'and', 'Athletic', 'Shoes'), ('Faux', 'Fur', 'mid', 'calf'))
    """
    return tuple(re.sub(r"(?<=[a-z])(?=[A-Z])|[.\-_\s]+", " ", name).split())


def words_of(names: Collection[str], replacements: Mapping[str, str] = _NOTHING) -> set[str]:
    """All words that `embed` may look for: each name and its parts, also in small letters."""
    words: set[str] = set()
    for name in names:
        own = _replace(name, replacements)
        words |= {own, *_pieces(own, replacements)}
    return words | {word.lower() for word in words}


def embed(
    names: Sequence[str],
    vectors: WordVectors,
    replacements: Mapping[str, str] = _NOTHING,
    missing: Literal["raise", "random"] = "raise",
) -> Embedded:
    """Vectors (n, D) of names.

    A name gets its own vector, or that of its lower-case spelling, or else the mean over its parts
    that have a vector; a part that occurs twice counts twice.

    Args:
        replacements: names or parts, and what to look for instead, such as {"Faux": "fake"}; they
            match in small letters as well.
        missing: what to do about names without a vector for any part. `raise` an error that
            names them all, or draw a `random` vector from a normal distribution, with the mean
            length of the vectors; its direction depends on the name alone.
    """
    found: dict[str, Tensor] = {}
    composed: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, tuple[str, ...]] = {}
    unknown: list[str] = []
    for name in dict.fromkeys(names):
        own = _replace(name, replacements)
        whole = _known_spelling(own, vectors)
        if whole is not None:
            found[name] = vectors[whole]
            continue
        pieces = _pieces(own, replacements)
        spelt = [(piece, _known_spelling(piece, vectors)) for piece in pieces]
        words = tuple(word for _, word in spelt if word is not None)
        if not words:
            unknown.append(name)
            continue
        found[name], composed[name] = torch.stack([vectors[word] for word in words]).mean(0), words
        if len(words) < len(pieces):
            left_out[name] = tuple(piece for piece, word in spelt if word is None)
    if unknown and (missing == "raise" or not vectors.words):
        raise ValueError(_no_vector(unknown, vectors))
    for name in unknown:
        found[name] = _random_vector(name, vectors)
    matrix = torch.stack([found[name] for name in names]) if names else vectors.matrix[:0]
    return Embedded(matrix, composed, left_out, tuple(unknown))


def _replace(word: str, replacements: Mapping[str, str]) -> str:
    return replacements.get(word, replacements.get(word.lower(), word))


def _pieces(name: str, replacements: Mapping[str, str]) -> list[str]:
    """Parts of a name; a part that has a replacement is replaced by the parts of that."""
    pieces: list[str] = []
    for part in split_name(name):
        other = _replace(part, replacements)
        pieces += [part] if other == part else split_name(other)
    return pieces


def _known_spelling(word: str, vectors: WordVectors) -> str | None:
    """The word as it is or in lower case, whichever has a vector; None if neither has."""
    return next((way for way in (word, word.lower()) if way in vectors), None)


def _random_vector(name: str, vectors: WordVectors) -> Tensor:
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
    drawn = torch.randn(vectors.dim, generator=generator(0, "weights", number))
    length: Tensor = torch.linalg.vector_norm(vectors.matrix, dim=1).mean()
    own: Tensor = torch.linalg.vector_norm(drawn)
    return drawn * (length / own)


def _no_vector(names: Sequence[str], vectors: WordVectors) -> str:
    if not vectors.words:
        return "none of the words has a vector: name a file that has words of the set"
    told = f" (in some of the files only: {shorten(vectors.incomplete)})" * bool(vectors.incomplete)
    return (
        f"no word vector for {len(names)} of the names, nor for any part of them{told}: "
        f"{', '.join(names)}. Use a file that has these words, name others to look for instead "
        "with --data.replacements WORD=OTHER, or draw vectors with --data.missing-words random"
    )


def _read(file: Path, words: Collection[str]) -> tuple[int, dict[str, list[float]]]:
    """D, and the vectors of the words that a file has; the first line of a word counts."""
    wanted = {word.encode(): word for word in words if word.strip()}
    # A word may contain spaces, so a line can be skipped only by its beginning.
    begins = {word.split(None, 1)[0] for word in wanted}
    found: dict[str, list[float]] = {}
    with file.open("rb") as stream:
        dim, lines = _read_header(file, stream)
        for number, line in lines:
            if line.count(b" ") < dim and len(line.split()) <= dim:
                raise _damaged(file, number, line, f"expected a word and {dim} numbers")
            if line.split(None, 1)[0] not in begins:
                continue
            fields = line.split()
            word = wanted.get(b" ".join(fields[:-dim]))
            if word is None and len(fields) > dim + 1 and _numbers(fields[1:-dim]) is not None:
                raise _damaged(file, number, line, f"{len(fields) - 1} numbers instead of {dim}")
            if word is None or word in found:
                continue
            values = _numbers(fields[-dim:])
            if values is None:
                raise _damaged(file, number, line, "not all of its values are numbers")
            if any(values):  # zeros say nothing about a word, and have no direction
                found[word] = values
    return dim, found


def _read_header(file: Path, stream: BinaryIO) -> tuple[int, Iterator[tuple[int, bytes]]]:
    """D, and the lines of words with their numbers from 1."""
    first, second = stream.readline().removeprefix(codecs.BOM_UTF8), stream.readline()
    if first.startswith(_PACKED):
        raise ValueError(f"{file} is compressed: unpack it, and name the text file")
    head, fields = first.split(), second.split()
    if len(head) == 2 and all(word.isdigit() for word in head):
        rest = _lines(file, [second], stream, start=2, count=int(head[0]))
        return int(head[1]), rest
    if len(head) < 2 or (fields and len(head) != len(fields)):
        raise ValueError(
            f"{file}, lines 1 and 2: expected a word and its numbers, as many in each line, or two "
            f"integers first; got {len(head)} and {len(fields)} values"
        )
    return len(head) - 1, _lines(file, [first, second], stream, start=1)


def _lines(
    file: Path, begun: Sequence[bytes], stream: BinaryIO, start: int, count: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, at least as many as the first line promises."""
    seen = 0
    for number, line in enumerate(itertools.chain(begun, stream), start):
        if line.strip():
            seen += 1
            yield number, line
    if seen < count:
        raise ValueError(
            f"{file} ends after {seen} of the {count} words that its first line promises: "
            "download it again, or correct that line if you have cut the file"
        )


def _numbers(fields: Sequence[bytes]) -> list[float] | None:
    try:
        values = [float(value) for value in fields]
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) else None


def _damaged(file: Path, number: int, line: bytes, why: str) -> ValueError:
    if b"\0" in line:
        return ValueError(
            f"{file}, line {number}: this is a binary file; save its vectors as text, which the "
            "tools of word2vec and fastText can do"
        )
    begin = line[:40].decode(errors="replace").strip()
    return ValueError(f"{file}, line {number} is damaged: {why}; it begins with {begin!r}")
