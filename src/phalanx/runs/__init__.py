"""A run: its settings, its execution, and its record."""
