"""Optuna sampler and pruner for known costs, and the choice of full trainings; need only numpy, scipy and Optuna."""
