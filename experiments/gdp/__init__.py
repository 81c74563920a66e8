"""Experiments of Bu, Dong, Long and Su (2020), Deep Learning with Gaussian DP."""
