"""Sweeps: many points of a spec, each computed once and kept in one SQLite file.

``spec.py`` says what a sweep may hold, ``points.py`` computes one point, ``store.py`` keeps rows,
``runner.py`` brings them together on one process or many, ``where.py`` reads filters and
``table.py`` gives what is kept, filtered and pivoted.
"""
