"""The experiments of the paper, and some on data that comes with scikit-learn: typed configs, presets, runs."""
