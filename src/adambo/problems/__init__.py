"""Bilevel formulations that people use, as problems of this library."""
