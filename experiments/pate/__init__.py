"""Private aggregation of teacher ensembles: Papernot et al. (2017, 2018)."""
