"""Pairs out of a tree: every attribute and every object stays in a seen pair."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchformer.lab.data.sets.pairs import Pair, pair_table, write_pair_table
from batchformer.lab.data.sets.pairs_from_tree import draw_unseen, make_pairs, split_images
from helpers.data_files import touch

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


@settings(max_examples=25)
@given(some_pairs, st.integers(0, 2**31), st.integers(0, 9))
def test_every_word_stays_in_a_seen_pair(pairs: list[Pair], seed: int, count: int) -> None:
    try:
        unseen = draw_unseen(pairs, count, seed)
    except ValueError as error:
        assert count > 0 and "ask for fewer (--unseen-val" in str(error)
        return
    assert len(unseen) == len({*unseen}) == count and {*unseen} <= {*pairs}
    assert min(left(pairs, unseen).values()) >= 1
    assert unseen == draw_unseen(pairs, count, seed)


def test_words_keep_two_seen_pairs_while_there_are_enough() -> None:
    for seed in range(20):
        assert min(left(GRID, draw_unseen(GRID, 10, seed)).values()) >= 2
        assert min(left(GRID, draw_unseen(GRID, 16, seed)).values()) == 1


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
    chance = random.Random(0)
    counts = {pair: chance.randint(1, 12) for pair in pairs}
    for (attribute, thing), count in counts.items():
        touch(root / attribute / thing, *(f"{number}.jpg" for number in range(count)))
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
    table = tmp_path / "pairs.csv"
    write_pair_table(table, make_pairs(tmp_path / "tree", 4, 6, seed=3))
    assert table.read_bytes().startswith(b"image,attribute,object,split\na/t/0.jpg,a,t,")
    made = pair_table(table, tmp_path / "tree")
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
    with pytest.raises(ValueError, match="22 unseen pairs are wanted, and this seed finds"):
        make_pairs(tmp_path, 11, 11, seed=0)
    for fractions in ((0.0, 0.5, 0.5), (0.6, 0.2, 0.3), (1.2, -0.1, -0.1), (60.0, 20.0, 20.0)):
        with pytest.raises(ValueError, match=f"1 together; got {fractions[0]}, "):
            make_pairs(tmp_path, 1, 1, 0, fractions)
