"""Course notes on differential privacy (nowave.it, 2021)."""
