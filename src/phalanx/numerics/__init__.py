"""Kernels, threads, memory and linear algebra for the aggregation rules."""
