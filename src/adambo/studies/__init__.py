"""Simulations that hold the theory against what happens: `adambo study NAME` makes the figure and the tables of one.

A study is a module with `SEEDS` and `study(effort) -> Findings`; `catalogue.py` names it.
"""
