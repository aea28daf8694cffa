"""Who met whom, who waits for whom, and why."""
