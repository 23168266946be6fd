"""Batches, the loss and the resumable trainer."""
