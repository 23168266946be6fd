"""Length generalization in transformers: train short, test long, and see why."""
