"""Pairs out of a tree: every word stays seen, against all choices there are."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.sets.pairs import Pair, pair_table, read_pairs
from batchformer.lab.data.sets.pairs_from_tree import (
    draw_unseen,
    make_pairs,
    most_unseen,
    split_images,
    write_pairs,
)

GRID = [(a, o) for a, o in product("abcd", "tuvwxyz")]
some_pairs = st.sets(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1).map(
    sorted
)
halves = st.sampled_from([(0.6, 0.2, 0.2), (0.5, 0.0, 0.5), (1.0, 0.0, 0.0), (0.1, 0.2, 0.7)])


def degrees(pairs: list[Pair]) -> Counter[tuple[int, str]]:
    return Counter((place, word) for pair in pairs for place, word in enumerate(pair))


def left(pairs: list[Pair], unseen: list[Pair]) -> dict[tuple[int, str], int]:
    """In how many seen pairs each word is."""
    seen = degrees([pair for pair in pairs if pair not in unseen])
    return {word: seen[word] for word in degrees(pairs)}


def most_by_trying(pairs: list[Pair], kept: int) -> int:
    whole = degrees(pairs)
    for size in range(len(pairs), -1, -1):
        for unseen in combinations(pairs, size):
            seen = left(pairs, list(unseen))
            if all(seen[word] >= min(kept, whole[word]) for word in whole):
                return size
    raise AssertionError("nothing unseen is always possible")


@settings(max_examples=25)
@given(some_pairs, st.integers(1, 2))
def test_the_most_that_can_be_unseen(pairs: list[Pair], kept: int) -> None:
    assert most_unseen(pairs, (), kept) == most_by_trying(pairs, kept)


@settings(max_examples=25)
@given(some_pairs, st.integers(0, 2**31), st.data())
def test_any_possible_number_is_drawn(pairs: list[Pair], seed: int, data: st.DataObject) -> None:
    most, easily = most_by_trying(pairs, 1), most_by_trying(pairs, 2)
    count = data.draw(st.integers(0, most))
    unseen = draw_unseen(pairs, count, seed)
    assert len(unseen) == len({*unseen}) == count and {*unseen} <= {*pairs}
    whole, seen = degrees(pairs), left(pairs, unseen)
    kept = 2 if count <= easily else 1
    assert all(seen[word] >= min(kept, whole[word]) for word in whole)
    assert unseen == draw_unseen(pairs, count, seed)
    with pytest.raises(ValueError, match=f"{most + 1} unseen .* between 0 and {most} can be"):
        draw_unseen(pairs, most + 1, seed)


def test_every_pair_is_drawn_as_often_as_the_others() -> None:
    times = Counter(pair for seed in range(70) for pair in draw_unseen(GRID, 4, seed))
    # 70 draws with probability 1/7: a standard deviation of 2.9 around 10.
    assert len(times) == len(GRID) and all(abs(n - 10) < 3.4 * 2.9 for n in times.values())


@settings(max_examples=40)
@given(st.integers(1, 300), halves, st.integers(0, 2**31), st.integers(0, 50))
def test_images_are_split(
    count: int, fractions: tuple[float, float, float], seed: int, number: int
) -> None:
    parts = Counter(split_images(count, fractions, seed, number))
    tenths = [round(10 * fraction) for fraction in fractions]
    assert parts["val"] == tenths[1] * count // 10 and parts["test"] == tenths[2] * count // 10
    assert parts.total() == count and parts["train"] >= 1
    assert "train" in split_images(count, (1e-12, 0.5, 0.5), seed, number)


def tree(root: Path, pairs: list[Pair] = GRID) -> dict[Pair, int]:
    """Empty files stand for 1 to 12 images of each pair."""
    chance, counts = random.Random(0), {}
    for attribute, thing in pairs:
        counts[attribute, thing] = chance.randint(1, 12)
        (root / attribute / thing).mkdir(parents=True)
        for number in range(counts[attribute, thing]):
            (root / attribute / thing / f"{number}.jpg").touch()
    return counts


def test_a_tree(tmp_path: Path) -> None:
    counts = tree(tmp_path)
    images = make_pairs(tmp_path, 4, 6, seed=0)
    assert images == sorted(images) and Counter(image.pair for image in images) == counts
    assert all(image.image.split("/")[:2] == [*image.pair] for image in images)
    assert len({image.image for image in images}) == len(images)
    parts = {pair: Counter(i.split for i in images if i.pair == pair) for pair in counts}
    unseen = {pair: own for pair, own in parts.items() if "train" not in own}
    assert Counter(next(iter(own)) for own in unseen.values()) == {"val": 4, "test": 6}
    for pair, own in parts.items():
        if pair in unseen:
            assert [*own.values()] == [counts[pair]]
        else:
            fifth = counts[pair] // 5
            assert (own["val"], own["test"]) == (fifth, fifth)
    assert min(left(GRID, [*unseen]).values()) >= 2
    assert images == make_pairs(tmp_path, 4, 6, seed=0) != make_pairs(tmp_path, 4, 6, seed=1)
    draws = [split_images(50, (0.6, 0.2, 0.2), s, n) for s in range(3) for n in range(3)]
    assert len({*map(tuple, draws)}) == 9, "each pair has its own draw"


def test_what_is_written_is_a_table(tmp_path: Path) -> None:
    tree(tmp_path / "tree")
    for name in ("1.csv", "2.csv"):
        images = write_pairs(tmp_path / name, tmp_path / "tree", 4, 6, seed=3)
    text = (tmp_path / "1.csv").read_bytes()
    assert text.startswith(b"image,attribute,object,split\na/t/0.jpg,a,t,")
    assert text == (tmp_path / "2.csv").read_bytes() and read_pairs(tmp_path / "1.csv") == images
    made = pair_table(tmp_path / "1.csv", tmp_path / "tree")
    assert made.remarks == () and len(made.compositions) == 28
    assert int(made.compositions.seen.sum()) == 18
    made.check_all()


def test_a_class_that_one_domain_has_stays_seen(tmp_path: Path) -> None:
    tree(tmp_path, [*product("ab", "xy"), ("b", "only")])
    for seed in range(10):
        images = make_pairs(tmp_path, 1, 1, seed)
        assert "train" in {image.split for image in images if image.object == "only"}


def test_numbers_that_are_none(tmp_path: Path) -> None:
    tree(tmp_path)
    with pytest.raises(ValueError, match="0 or more, got -1 and 3"):
        make_pairs(tmp_path, -1, 3, seed=0)
    with pytest.raises(ValueError, match="between 0 and 21 can be"):
        make_pairs(tmp_path, 11, 11, seed=0)
    for fractions in ((0.0, 0.5, 0.5), (0.6, 0.2, 0.3), (1.2, -0.1, -0.1), (60.0, 20.0, 20.0)):
        with pytest.raises(ValueError, match=f"1 together; got {fractions[0]}, "):
            make_pairs(tmp_path, 1, 1, 0, fractions)
