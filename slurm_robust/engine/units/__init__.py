"""What the core keeps of one concern each: checkpoints, starts, standbys, liveness …"""
