"""Storage: files and folders, the codec of tensors, clients' states, keys."""
