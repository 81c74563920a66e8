"""SG-MCMC and differential privacy, source 002."""
