"""Models of the `transformers` library; nothing else in this package imports it."""
