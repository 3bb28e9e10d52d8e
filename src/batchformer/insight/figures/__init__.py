"""Figures of networks that were looked at: one file a figure, and what figures share.

In a figure's file, ``gather`` collects the numbers of a group, or returns None if no run has them;
``caption``, ``draw`` and ``tables`` show them, and ``make`` puts these together. The options of a
figure are the parameters of ``gather``.
"""
