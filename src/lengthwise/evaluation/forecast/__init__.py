"""How a trained decoder will do at longer lengths, from passes that are no longer than those of training."""
