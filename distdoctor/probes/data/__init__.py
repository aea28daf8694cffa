"""What ranks read: loaders, samples, batches, and how long they go on."""
