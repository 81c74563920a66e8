"""Cases, oracles and simulations that several test modules share."""
