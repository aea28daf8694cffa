"""How ranks find each other: addresses, `init_process_group`, the store."""
