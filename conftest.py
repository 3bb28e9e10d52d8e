"""What pytest leaves alone here: kernels, on a machine without Triton."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["src/batchformer/kernels/*.py"]
