"""The workloads that benchmarks/rules.py compares, and each library's way to run them.

Everything here runs in every library's own environment, so it imports nothing but NumPy and the library in question.
"""
