"""Experiments of Tramèr and Boneh (2021), Differentially Private Learning Needs Better Features."""
