"""Readers of real data, and the plain functions that make tasks, imbalanced sets and batches of it."""
