"""The root side of a node: what prolog, epilog and the periodic check do with what the checks found."""
