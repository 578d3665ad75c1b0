"""Kernels, threads, memory and linear algebra under the aggregation rules."""
