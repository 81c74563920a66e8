"""SG-MCMC and differential privacy: Li, Chen and Liu (2017), slides."""
