"""Networks of the experiments."""
