"""Verbs of the command line, a file each, and the flags that several of them have."""
