"""Decoded images are what Pillow, asked by hand, makes of them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from batchformer.lab.data.files.decode import DamagedImageError, decode

# Decoders may differ in the last bit of a colour conversion.
LOSSY_LEVELS = 2


def picture(mode: str = "RGB") -> Image.Image:
    knots = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(knots).resize((40, 30), Image.Resampling.BICUBIC).convert(mode)


def by_pillow(path: Path) -> torch.Tensor:
    with Image.open(path) as file:
        upright = ImageOps.exif_transpose(file).convert("RGB")
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("mode", "name", "tolerance"),
    [
        ("RGB", "a.jpg", LOSSY_LEVELS),
        ("L", "grey.jpg", LOSSY_LEVELS),
        ("CMYK", "cmyk.jpg", LOSSY_LEVELS),
        ("RGB", "a.png", 0),
        ("RGBA", "alpha.png", 0),
        ("LA", "grey_alpha.png", 0),
        ("P", "palette.png", 0),
        ("1", "bits.png", 0),
        ("RGB", "a.webp", LOSSY_LEVELS),
        ("P", "a.gif", 0),
        ("RGB", "a.bmp", 0),
        ("RGB", "a.tif", 0),
        ("CMYK", "cmyk.tif", 0),
        ("RGB", "a.ppm", 0),
        ("RGB", "with space and é.jpg", LOSSY_LEVELS),
    ],
)
def test_formats_and_modes(tmp_path: Path, mode: str, name: str, tolerance: int) -> None:
    image = picture(mode)
    if "A" in mode:
        image.putalpha(77)
    image.save(tmp_path / name)
    got = decode(tmp_path / name)
    assert got.dtype == torch.uint8 and got.shape == (3, 30, 40)
    difference = (got.int() - by_pillow(tmp_path / name).int()).abs()
    assert int(difference.max()) <= tolerance
    assert got.float().std() > 10, "the picture has contrast, so that equality means something"


@pytest.mark.parametrize("orientation", [1, 2, 3, 6, 8])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_turned_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{suffix}"
    picture().save(path, exif=exif)
    got, expected = decode(path), by_pillow(path)
    assert got.shape == expected.shape == ((3, 30, 40) if orientation < 5 else (3, 40, 30))
    assert int((got.int() - expected.int()).abs().max()) <= LOSSY_LEVELS


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_damaged_exif_does_not_stop_a_whole_picture(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    picture().save(path, exif=b"Exif\0\0garbage!")
    assert decode(path).shape == (3, 30, 40)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path, suffix: str) -> None:
    deep = (np.arange(30 * 40).reshape(30, 40) * 54).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / f"deep.{suffix}")
    grey = torch.from_numpy((deep // 256).astype(np.uint8))
    assert torch.equal(decode(tmp_path / f"deep.{suffix}"), grey.expand(3, -1, -1))


def test_nothing_is_said_of_a_transparent_palette(tmp_path: Path) -> None:
    picture("P").save(tmp_path / "palette.png", transparency=bytes(range(256)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = decode(tmp_path / "palette.png")
    assert torch.equal(
        got, torch.from_numpy(np.array(picture("P").convert("RGB"))).permute(2, 0, 1)
    )


def test_the_first_picture_of_an_animation(tmp_path: Path) -> None:
    path = tmp_path / "moving.gif"
    picture().save(path, save_all=True, append_images=[picture().rotate(180)])
    assert torch.equal(decode(path), by_pillow(path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut.jpg", "truncated"),
        ("cut.png", ""),
        ("cut.bmp", ""),
        ("changed.png", "broken data"),
        ("empty.jpg", "the file is empty"),
        ("text.jpg", "not an image of a known format"),
        ("float.tif", "mode F is unknown"),
    ],
)
def test_damage_names_the_file(tmp_path: Path, name: str, reason: str) -> None:
    path = tmp_path / name
    if name.startswith("cut"):
        picture().save(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 9 // 10])
    elif name.startswith("changed"):
        picture().save(path)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 255
        path.write_bytes(content)
    elif name == "float.tif":
        picture("F").save(path)
    else:
        path.write_text("" if name.startswith("empty") else "no image at all")
    with pytest.raises(DamagedImageError, match=f"{name} cannot be decoded: .*{reason}.*Replace"):
        decode(path)


def test_without_torchvisions_decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture().save(tmp_path / "a.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of what is deprecated
        expected = decode(tmp_path / "a.jpg")
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    got = decode(tmp_path / "a.jpg")
    assert int((got.int() - expected.int()).abs().max()) <= LOSSY_LEVELS


def test_an_absent_library_or_file_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture().save(tmp_path / "a.bmp")
    with pytest.raises(FileNotFoundError, match=r"away\.jpg"):
        decode(tmp_path / "away.jpg")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="PIL"):
        decode(tmp_path / "a.bmp")
