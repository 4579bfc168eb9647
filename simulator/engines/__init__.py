"""Readers of the tile program: each interprets the same tape for one purpose.

``NAMES`` are those that give a point's traffic: the SM boundary only; L2 and DRAM at the speed that
the tool picks (tiles, and what repeats is simulated once); all tiles; all lines, the exact one.
"""

NAMES = ("scratchpad", "l2", "l2-tile", "l2-line")
