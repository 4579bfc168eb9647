"""Experiments, the command line and the recorded measurements."""
