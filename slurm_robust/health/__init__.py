"""Node checks: what reads the machine (gather) apart from what judges it (pure)."""
