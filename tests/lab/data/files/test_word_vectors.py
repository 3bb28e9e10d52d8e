"""Word vectors: the three text formats, names of several words, and what has no vector."""

from __future__ import annotations

import codecs
import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.files.word_vectors import (
    WordVectors,
    embed,
    read_vectors,
    split_name,
    words_of,
)

KNOWN = {
    "burnt": [1.0, 0.0],
    "faux": [2.0, 0.0],
    "fur": [0.0, 4.0],
    "fake": [0.0, -6.0],
    "Boots": [3.0, 3.0],
    "boots": [9.0, 9.0],
    "mid": [1.0, 1.0],
    "shoes": [6.0, 0.0],
    "sneakers": [0.0, 6.0],
    "ancient tower": [5.0, 5.0],
    "tower": [7.0, 7.0],
}


def vectors(known: dict[str, list[float]] = KNOWN) -> WordVectors:
    return WordVectors(tuple(known), torch.tensor([*known.values()]).reshape(-1, 2))


def write(file: Path, lines: list[str]) -> Path:
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("end", ["", " "])
def test_formats(tmp_path: Path, header: bool, end: str) -> None:
    lines = ["the 1 2 3", "dog 0.5 -1e-3 2", "crème 3 2 1", "dog 9 9 9", "cat 1 1 1"]
    lines = ["5 3"] * header + [line + end for line in lines]
    found = read_vectors([write(tmp_path / "v.txt", lines)], {"dog", "crème", "cow"})
    assert found.words == ("crème", "dog") and found.dim == 3 and found.incomplete == ()
    assert found.matrix.dtype == torch.float32
    assert torch.equal(found.matrix, torch.tensor([[3, 2, 1], [0.5, -1e-3, 2]]))
    assert torch.equal(found["dog"], found.matrix[1]) and "cat" not in found
    marked = tmp_path / "marked.txt"  # as some editors save UTF-8
    marked.write_bytes(codecs.BOM_UTF8 + (tmp_path / "v.txt").read_bytes())
    assert read_vectors([marked], {"the", "dog"}).words == ("dog", "the")


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_categories=("Z", "C")), min_size=1),
        st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=2),
        min_size=1,
    )
)
def test_any_words(tmp_path_factory: pytest.TempPathFactory, known: dict[str, list[float]]) -> None:
    lines = [f"{word} {a!r} {b!r}" for word, (a, b) in known.items()]
    file = write(tmp_path_factory.getbasetemp() / "vectors.txt", lines)
    found = read_vectors([file], known)
    assert found.words == tuple(sorted(word for word in known if any(known[word])))
    assert np.array_equal(
        found.matrix.numpy(),
        np.array([known[word] for word in found.words], np.float32).reshape(-1, 2),
    )


def test_zeros_are_no_vector(tmp_path: Path) -> None:
    one = write(tmp_path / "1.txt", ["dog 0 0", "cat 1 2", "faux 0.0 -0", "fur 3 4", "ant 0 0"])
    one.write_text(one.read_text() + "ant 5 6\n")
    found = read_vectors([one], ["dog", "cat", "faux", "fur", "ant"])
    assert found.words == ("ant", "cat", "fur") and found["ant"].tolist() == [5, 6]
    made = embed(["dog", "faux fur"], found, missing="random")
    assert made.random == ("dog",) and made.missing == {"faux fur": ("faux",)}
    assert made.matrix[0].any() and made.matrix[1].tolist() == [3, 4]
    two = write(tmp_path / "2.txt", ["dog 7", "cat 8"])
    assert read_vectors([one, two], ["dog", "cat"]).incomplete == ("dog",)


def test_several_files_are_put_side_by_side(tmp_path: Path) -> None:
    one = write(tmp_path / "1.txt", ["3 1", "dog 1", "cat 2", "ant 3"])
    two = write(tmp_path / "2.txt", ["cat 4 5", "dog 6 7", "bee 8 9"])
    found = read_vectors([one, two], ["dog", "cat", "ant", "bee", "cow"])
    assert found.words == ("cat", "dog") and found.matrix.tolist() == [[2, 4, 5], [1, 6, 7]]
    assert found.incomplete == ("ant", "bee")
    with pytest.raises(ValueError, match=r"in some of the files only: ant, bee\): ant"):
        embed(["dog", "ant"], found)
    assert read_vectors([one, two], ["cow"]).matrix.shape == (0, 3)


def test_words_with_spaces(tmp_path: Path) -> None:
    lines = ["a 1 2", "b 1 2", "at me@home.org 3 4", "at 5 6", "new york 7 8", ". . . 9 9"]
    found = read_vectors([write(tmp_path / "v.txt", lines)], {"at", "new york", "new"})
    assert found.words == ("at", "new york") and found.matrix.tolist() == [[5, 6], [7, 8]]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["a 1 2", "b 1 2", "dog 1"], "line 3 is damaged: expected a word and 2 numbers.* 'dog 1'"),
        (["9 2", "a 1 2", "other 1"], "line 3 is damaged"),
        (["a 1 2", "b 1 2", "dog 1 2 3"], "line 3 is damaged: 3 numbers instead of 2"),
        (["a 1 2", "dog 1 2x"], "line 2 is damaged: not all of its values are numbers"),
        (["a 1 2", "dog 1 nan"], "line 2 is damaged: not all"),
        (["a 1", "dog 1 2"], "lines 1 and 2: .* got 2 and 3 values"),
        (["", ""], "lines 1 and 2: .* got 0 and 0 values"),
        (["4 2", "a 1 2", "dog 1 2", ""], "ends after 2 of the 4 words"),
        (["2 3", "a 1\0\0 b"], "line 2: this is a binary file"),
    ],
)
def test_damaged_files(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        read_vectors([write(tmp_path / "v.txt", lines)], {"dog"})
    assert "v.txt" in str(caught.value)


def test_packed_files_and_none(tmp_path: Path) -> None:
    (tmp_path / "v.gz").write_bytes(gzip.compress(b"dog 1 2\n"))
    for files, words in (([tmp_path / "v.gz"], "compressed: unpack it"), ([], "no file of word v")):
        with pytest.raises(ValueError, match=words):
            read_vectors(files, {"dog"})


def test_parts() -> None:
    """Beside those in the documentation of the function."""
    for name in ("ancient tower", "ancient_tower", "ancient.tower", "ancient - tower"):
        assert split_name(name) == ("ancient", "tower")
    assert split_name("TV") == ("TV",) and split_name("._-") == ()


def test_names() -> None:
    names = ["burnt", "Burnt", "Boots", "ancient tower", "Faux.Fur", "Shoes.Shoes.Sneakers"]
    made = embed([*names, "burnt"], vectors())
    assert made.matrix.dtype == torch.float32
    assert made.matrix.tolist() == [[1, 0], [1, 0], [3, 3], [5, 5], [1, 2], [4, 2], [1, 0]]
    assert made.composed == {
        "Faux.Fur": ("faux", "fur"),
        "Shoes.Shoes.Sneakers": ("shoes", "shoes", "sneakers"),
    }
    assert made.missing == {} and made.random == ()
    assert embed([], vectors()).matrix.shape == (0, 2)


def test_parts_without_a_vector_are_left_out_and_listed() -> None:
    made = embed(["Boots.Mid-Calf", "Knee.High", "fur"], vectors({**KNOWN, "high": [1.0, 8.0]}))
    assert made.matrix.tolist() == [[2, 2], [1, 8], [0, 4]]
    assert made.composed == {"Boots.Mid-Calf": ("Boots", "mid"), "Knee.High": ("high",)}
    assert made.missing == {"Boots.Mid-Calf": ("Calf",), "Knee.High": ("Knee",)}


def test_names_without_any_vector() -> None:
    with pytest.raises(ValueError) as caught:
        embed(["Nubuck", "burnt", "Hair.Calf", "Faux.Nubuck", "Nubuck"], vectors())
    words = str(caught.value)
    assert (
        words.startswith("no word vector for 2 of the names") and ": Nubuck, Hair.Calf. " in words
    )
    assert "--data.replacements" in words and "--data.missing-words random" in words
    with pytest.raises(ValueError, match="none of the words has a vector"):
        embed(["burnt"], vectors({}), missing="random")


def test_random_vectors_have_the_mean_length() -> None:
    names = ["Nubuck", "burnt", "Calf"]
    made = embed(names, vectors(), missing="random")
    length = np.mean([math.hypot(*vector) for vector in KNOWN.values()])
    assert np.allclose(np.linalg.norm(made.matrix.numpy()[[0, 2]], axis=1), length)
    assert made.random == ("Nubuck", "Calf") and made.missing == made.composed == {}
    again = embed(["new", "Calf", "Nubuck"], vectors(), missing="random")
    assert torch.equal(again.matrix[[2, 1]], made.matrix[[0, 2]])
    assert not torch.allclose(made.matrix[0], made.matrix[2])


def test_random_directions_are_those_of_a_normal_distribution() -> None:
    made = embed([f"n{k}" for k in range(2000)], vectors(), missing="random").matrix.double()
    angles = torch.atan2(made[:, 1], made[:, 0])
    # Directions of a normal distribution are uniform: both means are 0 +- 0.7 / sqrt(2000).
    assert max(angles.cos().mean().abs(), angles.sin().mean().abs()) < 4.5 * 0.7071 / 2000**0.5


def test_replacements() -> None:
    made = embed(["Faux.Fur", "Nubuck"], vectors(), replacements={"Faux": "fake", "nubuck": "fur"})
    assert made.matrix.tolist() == [[0, -1], [0, 4]]
    assert made.composed == {"Faux.Fur": ("fake", "fur")}
    whole = embed(["Faux.Fur"], vectors(), replacements={"Faux.Fur": "burnt sneakers"})
    assert whole.matrix.tolist() == [[0.5, 3.0]]
    several = embed(["Nubuck.Fur"], vectors(), replacements={"Nubuck": "fake shoes"})
    assert several.composed == {"Nubuck.Fur": ("fake", "shoes", "fur")}


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["FauxFur", "Boots.Mid-Calf", "BURNT", "ancient tower", "X"])))
def test_the_words_of_names_are_all_that_are_looked_for(names: list[str]) -> None:
    replacements = {"Faux": "fake", "x": "burnt sneakers"}
    words = words_of(names, replacements=replacements)
    kept = {word: vector for word, vector in KNOWN.items() if word in words}
    few = embed(names, vectors(kept), replacements=replacements)
    whole = embed(names, vectors(), replacements=replacements)
    assert torch.equal(few.matrix, whole.matrix) and few.composed == whole.composed
    assert words_of(["Faux.Fur"]) == {"Faux.Fur", "faux.fur", "Faux", "Fur", "faux", "fur"}
