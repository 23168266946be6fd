"""Examination of a language model: its usable context, the cause of failures, and the settings to change."""
