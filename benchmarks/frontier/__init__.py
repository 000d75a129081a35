"""The largest rate at which nine of ten answers are good, for each mode, over targets and workloads."""
