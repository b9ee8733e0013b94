"""Run records become the figures, tables and verdicts of the page on the paper's reproduction."""
