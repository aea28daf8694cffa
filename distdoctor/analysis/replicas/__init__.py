"""Which ranks train one model, and where its replicas part."""
