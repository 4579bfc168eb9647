"""Readers of the tile program: each interprets the same tape for one purpose."""
