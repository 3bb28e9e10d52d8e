"""The result of ``check``: its questions, their answers, and the table that shows them."""

from __future__ import annotations

from dataclasses import dataclass

THERE = "is it there?"
ON = "is it on?"
CALLED = "is every part of it called?"
STREAMS = "two streams in training?"
ATTEND = "do samples attend to each other?"
STAY = "do plain rows stay?"
FIRST = "plain rows first?"
EQUAL = "are equal samples treated equally?"
OWN = "is each mixed row that of its own sample?"
SIZE = "are both streams of one size?"
SHARED = "one shared classifier?"
LEARN = "does every encoder weight learn?"
TRAIN = "do both streams train the network?"
ALIVE = "is the encoder still alive?"
EVAL = "is eval the plain model?"
MEMBER = "is it in the optimizer?"

#: In nats. Below this, one sample has no effect on another's loss; as in the lab's reports.
NEXT_TO_NOTHING = 1e-3

CONTROL = "samples attend only to themselves"
AFTER_CLASSIFIER = (
    "no layer with weights follows the encoder. Unless the classifier is in your loss, the encoder "
    "stands after the classifier: move it before, logits = head(two_streams(x, module))"
)


@dataclass(frozen=True)
class Finding:
    """One question, its answer, and what to do if the answer is no.

    ``passed`` is None if the question could not be judged; ``seen`` says why.
    """

    question: str
    passed: bool | None
    seen: str
    remedy: str = ""


@dataclass(frozen=True)
class CheckResult:
    """The findings of :func:`check`; true if BatchFormer is proven to act, a table when printed.

    It is true if nothing failed and samples were seen to attend to each other. If that could not
    be judged, it is false without failures: nothing is wrong, and nothing is proven. Other
    questions may stay open (``passed`` is None in a finding). ``influence`` is how far one sample
    can change another's loss, in nats; None if not measured.
    """

    findings: tuple[Finding, ...]
    influence: float | None = None

    @property
    def passed(self) -> bool:
        return not self.failures and not self._attention_open

    @property
    def _attention_open(self) -> bool:
        return any(f.question == ATTEND and f.passed is None for f in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.passed is False)

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        width = max(len(finding.question) for finding in self.findings)
        rows = []
        for finding in self.findings:
            mark = {True: "ok  ", False: "FAIL", None: "?   "}[finding.passed]
            seen = finding.seen if finding.passed is not None else f"not judged: {finding.seen}"
            rows.append(f"{mark}  {finding.question:<{width}}  {seen}")
            if finding.passed is False:
                rows.append(f"{'':6}{'':{width}}  -> {finding.remedy}")
        failed, answers = len(self.failures), [finding.passed for finding in self.findings]
        last = f"{failed} of {len(answers)} failed" if failed else "BatchFormer is acting"
        if not failed and any(f.seen.startswith(CONTROL) for f in self.findings):
            last = f"{last} as the control: {CONTROL}"
        open_ones = [f for f in self.findings if f.passed is None]
        if not failed and self._attention_open:
            last = "Nothing failed, but it is not proven that BatchFormer is acting"
        elif not failed and any(f.seen == AFTER_CLASSIFIER for f in open_ones):
            last = "Nothing failed, but no classifier follows the encoder"
        rows.append(last + (f"; {answers.count(None)} not judged." if None in answers else "."))
        return "\n".join(rows)
