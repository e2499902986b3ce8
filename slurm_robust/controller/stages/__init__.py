"""The stages of a job's life, one class each.

::

    Gathering ──► Launching ──► Running ──► Ending
        ▲             │            │ USR1
        │          failure         ▼
        │             │       Checkpointing
        │             ▼            │
        └─ Deciding ◄ Stopping ◄───┘        Deciding ──► Requeueing | Ending
"""
