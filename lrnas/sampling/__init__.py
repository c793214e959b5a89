"""Optuna sampler and pruner for accuracy and known costs, and the choice of full trainings; only numpy, scipy, Optuna."""
