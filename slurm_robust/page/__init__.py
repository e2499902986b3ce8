"""What HTML pages have in common: one file each, which loads nothing and sends nothing."""
