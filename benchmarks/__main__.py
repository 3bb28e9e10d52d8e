"""Run them: ``python -m benchmarks [attached attention_kernels contrast loop ...]``; --help."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from batchformer.lab.bench.measure import BenchSettings
from batchformer.lab.bench.run import run

NAMES = (
    *("attached", "attention_kernels", "contrast", "lab_kernels", "loop"),
    *("profile", "side_by_side", "v2_layer", "frozen_features", "few_images"),
    *("long_tail_features", "one_stream"),
)
PARTS = {name: f"benchmarks.{name}" for name in NAMES}


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and save; returns 1 if a part failed."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, help="rounds of every measurement")
    parser.add_argument("--to", type=Path, default=Path("bench"), help="folder of the tables")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    settings = BenchSettings(torch.device(options.device), repeats=options.repeats)
    tables = run(settings, options.to, options.parts, parts=PARTS)
    return int(any(table.failed for table in tables))


if __name__ == "__main__":
    raise SystemExit(main())
