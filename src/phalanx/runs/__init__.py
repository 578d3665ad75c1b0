"""One run: what it is, how it is carried out, and what is recorded of it."""
