"""What ``srobust run`` does before a controller begins: checks, sizes, and the point from which a training
goes on.
"""
