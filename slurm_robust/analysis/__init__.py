"""Pure conclusions from what was observed: exits, productive time. Nothing here touches the machine."""
