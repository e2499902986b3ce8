"""Pure: whether training hangs, slows down, or goes astray, from what its step records say."""
