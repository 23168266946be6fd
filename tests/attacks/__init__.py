"""Attacks on files, processes and the command line, run by `benchmarks/faults.py`."""
