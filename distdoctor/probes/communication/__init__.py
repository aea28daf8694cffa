"""What ranks say to each other: collectives, messages, the store, and waits."""
