"""The stages of a job's life, one class each.

::

    Gathering ─► Launching ─► Running ─► Ending         Reconnecting ─► Running   (a new controller)
        ▲            │         │ ▲  │ USR1              Observing ─► Running | Ending   (observe mode)
        │         failure  hang│ │  ▼
        │            │  Localising Checkpointing
        │            ▼         │    │
        └─ Deciding ◄─ Stopping ◄───┘       Deciding ─► Testing ─► Deciding
                                            Deciding ─► Borrowing ─► Deciding
                                            Deciding ─► Requeueing | Saving ─► Ending
"""
