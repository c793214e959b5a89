"""Optuna sampler and pruner for accuracy against known costs; need only numpy, scipy and Optuna."""
