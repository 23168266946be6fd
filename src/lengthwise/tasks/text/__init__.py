"""Language modeling: documents, tokenizers, prepared corpora and the text task."""
