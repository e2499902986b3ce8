"""The checks of nodes: :mod:`.check` says what one is, :mod:`.registry` lists them, :mod:`.runner` runs them,
and :mod:`.verdict` judges the node by a run.
"""
