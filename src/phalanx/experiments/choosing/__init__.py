"""Which composition to use: by what it promises, and by what was measured in a federation of that size."""
