"""What a person reads of the data before anything is trained, once for all runs of a command."""

from __future__ import annotations

import sys

from batchformer.lab.config.data import LongTailConfig
from batchformer.lab.runs.folder import recorded
from batchformer.lab.runs.run import Run
from batchformer.lab.tasks.load import remarks_in
from batchformer.lab.tasks.scoring import class_sizes
from batchformer.nn.exchange import leads


class Opening:
    """Says on stderr what there is to know of the data of runs; no line twice.

    Args:
        quiet: say nothing; what runs record of their data is in their reports all the same.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or not leads()
        self._said: set[str] = set()

    def __call__(self, run: Run) -> None:
        """The data of a run that has begun: class counts and shots, then remarks."""
        if self.quiet:
            return
        facts = (recorded(run.folder) or {}).get("data", {})
        lines = remarks_in(facts)
        data = run.trained.data
        if isinstance(data, LongTailConfig):
            lines.insert(0, class_sizes(run.task.method_options["class_counts"], data))
        for line in (f"{facts.get('name', data.name)}: {line}" for line in lines):
            if line not in self._said:
                self._said.add(line)
                print(line, file=sys.stderr, flush=True)
