"""Attacks on files, processes and the command line; `benchmarks/faults.py` makes them all."""
