"""Who waits for whom, and who will wait for ever."""
