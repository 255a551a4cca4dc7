"""Benchmarks: each compares, in one run, a figure with a limit or a peer. See `bench.harness`."""
