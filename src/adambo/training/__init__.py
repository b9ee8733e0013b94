"""Runs that survive: the loop, run folders, checkpoints, progress."""
