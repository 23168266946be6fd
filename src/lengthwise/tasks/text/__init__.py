"""Language modelling: documents, tokenizers, prepared corpora and the text task."""
