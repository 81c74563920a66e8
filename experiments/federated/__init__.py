"""A federated regression with every party a process on this machine."""
