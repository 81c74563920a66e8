"""Settings of private runs that rehearsals on simulated records choose."""
