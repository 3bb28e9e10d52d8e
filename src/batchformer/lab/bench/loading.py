"""Images a second from JPEG files, as a table."""

from __future__ import annotations

from batchformer.lab.bench import loader
from batchformer.lab.bench.settings import BenchSettings
from batchformer.lab.bench.spread import Spread
from batchformer.lab.bench.table import Table
from batchformer.lab.report.results.extra import extra

REPEATS, FULL_REPEATS = 3, 5
#: In one timing, unless everything is asked for.
BATCHES = 10


def measure(settings: BenchSettings, **sizes: int) -> Table:
    """The plain pipeline of Pillow and torchvision, and ours; ``sizes`` go to the measurement."""
    with extra("lab"):
        import torchvision  # noqa: F401
    repeats = settings.repeats or (FULL_REPEATS if settings.full else REPEATS)
    found = loader.measure(repeats, **({} if settings.full else {"batches": BATCHES}) | sizes)
    table = Table(
        "loader",
        "From JPEG files to normalised batches: random resized crop and flip",
        ("pipeline", "images/s", "ratio"),
        settings.environment("uint8 to float32"),
    )
    ratio = Spread(found["ratio"], found["low_ratio"], found["high_ratio"], repeats)
    table.add("Pillow, torchvision, DataLoader", found["plain_images_per_s"], None)
    table.add("ours", found["ours_images_per_s"], ratio)
    table.notes.append(
        f"Files of {found['jpeg_kilobytes']:.0f} kB in the system's cache, batches of "
        f"{found['batch_size']:.0f}, {found['workers']:.0f} worker processes each, on the CPU"
    )
    return table
