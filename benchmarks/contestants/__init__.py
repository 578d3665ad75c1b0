"""What benchmarks/rules.py compares: workloads, and each library's way to run them.

Everything here runs in every library's own environment, so it imports nothing but NumPy and the library in question.
"""
