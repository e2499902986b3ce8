"""What ``srobust run`` does before a controller begins: checks, sizes, and from where a training goes on."""
