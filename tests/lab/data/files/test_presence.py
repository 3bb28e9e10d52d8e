"""What is missing is counted, named, and looked for next door."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from batchformer.lab.data.files import location as presence


def fill(root: Path, paths: list[str]) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


@pytest.fixture
def paths() -> list[str]:
    return [f"train/{number % 7}/image {number}.jpg" for number in range(500)]


def test_all_there(tmp_path: Path, paths: list[str]) -> None:
    fill(tmp_path, paths)
    presence.check_some(tmp_path, paths)
    presence.check_all(tmp_path, paths)


@pytest.mark.parametrize("row", [0, 499])
def test_the_first_and_the_last_are_looked_for(tmp_path: Path, paths: list[str], row: int) -> None:
    fill(tmp_path, paths)
    (tmp_path / paths[row]).unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"^1 of the 64 images looked for \(out of 500\) .*\n.*{row}"
    ):
        presence.check_some(tmp_path, paths)


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 200])
def test_how_many_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    looked: list[str] = []

    def is_file(path: Path) -> bool:
        looked.append(path.name)
        return True

    monkeypatch.setattr(Path, "is_file", is_file)
    presence.check_some(tmp_path, [str(number) for number in range(count)])
    numbers = [int(name) for name in looked]
    assert len(numbers) == min(count, presence.SAMPLED) and numbers == sorted(set(numbers))
    if count:
        gaps = [b - a for a, b in itertools.pairwise(numbers)]
        assert numbers[0] == 0 and numbers[-1] == count - 1 and max(gaps, default=0) <= 4


def test_every_one_is_looked_for(tmp_path: Path, paths: list[str]) -> None:
    fill(tmp_path, paths)
    gone = [3, 4, 77, 78, 79, 80, 81, 310]
    for row in gone:
        (tmp_path / paths[row]).unlink()
    (tmp_path / paths[4]).mkdir()  # a folder is no image
    with pytest.raises(FileNotFoundError) as caught:
        presence.check_all(tmp_path, paths)
    words = str(caught.value)
    assert words.startswith(f"8 of 500 images are not in {tmp_path}:")
    assert all(paths[row] in words for row in gone[:5]) and paths[81] not in words
    assert "and 3 more" in words and "Name the folder that these paths start from" in words


def test_a_whole_folder_away(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.jpg"])
    with pytest.raises(FileNotFoundError, match="2 of 3 images"):
        presence.check_all(tmp_path, ["a/1.jpg", "b/2.jpg", "a/1.jpg/3.jpg"])


def test_absolute_paths_need_no_root(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.jpg"])
    (tmp_path / "elsewhere").mkdir()
    presence.check_all(tmp_path / "elsewhere", [str(tmp_path / "a/1.jpg")])


def test_one_folder_too_deep_or_too_high(tmp_path: Path, paths: list[str]) -> None:
    fill(tmp_path / "data", paths)
    for wrong in (tmp_path / "data" / "train", tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            presence.check_some(wrong, paths)
        assert f"found from {tmp_path / 'data'}: name that folder" in str(caught.value)


@pytest.mark.parametrize("check", [presence.check_some, presence.check_all])
def test_no_such_root(tmp_path: Path, check: Callable[[Path, Sequence[str]], None]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileNotFoundError, match="away, does not exist"):
        check(tmp_path / "away", ["a.jpg"])
    with pytest.raises(FileNotFoundError, match="is a file, not a folder"):
        check(tmp_path / "file", ["a.jpg"])
