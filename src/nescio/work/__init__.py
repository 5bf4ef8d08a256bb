"""Work that is done once: steps with keys, the store that keeps them, launchers that run them."""
