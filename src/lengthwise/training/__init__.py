"""Training batches, the loss and the resumable trainer."""
