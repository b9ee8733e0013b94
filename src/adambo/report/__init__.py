"""Run folders become figures, tables and one page."""
