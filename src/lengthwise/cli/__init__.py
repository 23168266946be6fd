"""The command line: one command per public function.

``app``, ``options`` and ``commands`` import only light modules at their top, so that help and shell completion start
quickly. A command imports what needs torch, NumPy or matplotlib in its function; the other modules here may import it
at their top.
"""
