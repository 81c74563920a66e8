"""One private run on several processes of this machine, and the same on one."""
