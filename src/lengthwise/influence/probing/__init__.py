"""Forward passes of a language model with parts of its context hidden."""
