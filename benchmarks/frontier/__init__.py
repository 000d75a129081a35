"""Finds the largest rate at which 90% of answers are good, per mode, over targets and workloads."""
