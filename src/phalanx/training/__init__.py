"""Local training, models as flat vectors, and evaluation."""
