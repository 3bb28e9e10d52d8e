"""Figures of networks that were looked at: one file a figure, and what figures share.

In a figure's file, ``gather`` takes the numbers of a group, or None where no run has them;
``caption``, ``draw`` and ``tables`` show them, and ``make`` puts these together. Their options are
those of ``gather``.
"""
